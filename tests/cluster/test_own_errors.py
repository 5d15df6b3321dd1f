"""An exception of the user's own in a training on several devices: what is left of it, and how it goes on."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import bow
from bow.errors import ClusterError
from tests.cluster.killed import last_checkpoint
from tests.cluster.test_train import CLASSES, FEATURES, data
from tests.cluster.worlds import soon
from tests.forked import PLACE
from tests.grouped import grouped

STEPS, AT = 24, 10
"""A training's rounds, and how many have ended before something fails."""

PER_ROUND = 2
"""Learners of each device."""


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 300
    while not condition():
        if time.monotonic() > give_up:  # no assert: what a step reaches is watched, and pytest rewrites asserts
            raise TimeoutError
        time.sleep(0.02)


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def other_has_failed() -> bool:
    """Whether the other device has withdrawn from the round, and says how far it has come."""
    store = dist.distributed_c10d._get_default_store().underlying_store
    return store.check([f"at/{1 - rank()}"])


def stepped() -> Path:
    """Is there when one device has ended the round in which the other one is to fail."""
    return Path(os.environ["BOW_TEST_STEPPED"])


@dataclasses.dataclass(repr=False)
class Failure:
    """Fails once, where it is told to: behind `AT` rounds, on some of the devices.

    Args:
        where: `"callback"`, `"epoch"`, `"data"`, `"step"`, `"metric"` or `""`.
        ranks: on which devices.
        after: behind which round.
        first: whether the other device has yet to step then, which for callbacks need not be so.
    """

    where: str = ""
    ranks: tuple[int, ...] = (0, 1)
    after: int = AT
    first: bool = True
    calls: int = 0

    def __repr__(self) -> str:  # or a step with another failure would be another step
        return "Failure()"

    def at(self, where: str, call: int) -> None:
        """Called where something could fail, which it does at this call."""
        if where != self.where:
            return
        self.calls += 1
        if self.calls != call or not self.ranks:
            return
        if rank() in self.ranks:
            if not self.first:
                wait_for(stepped().exists)
            raise OSError("the picture is damaged")
        if self.first and where == "step":
            wait_for(other_has_failed)

    def on_round_end(self, run: Any) -> None:
        if self.ranks and not self.first:
            run._agreement.next_round = STEPS  # in an exchange, the other device would wait for this one
            if run.round > self.after and rank() not in self.ranks:
                stepped().touch()
        self.at("callback", self.after)

    def on_epoch_end(self, run: Any, record: Any) -> None:
        self.at("epoch", 1)


class Samples(TensorDataset):
    """Data that are read one by one."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(*data())
        self.failure = failure

    def __getitem__(self, index: int) -> Any:
        self.failure.at("data", 4 * (PER_ROUND * AT + 1) + 3)  # the first batch is read before the training, too
        return super().__getitem__(index)


def step_with(failure: Failure, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    if torch.is_grad_enabled():
        failure.at("step", PER_ROUND * AT + 1)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Right(bow.Metric):
    name = "right"
    higher_is_better = True

    def __init__(self, failure: Failure) -> None:
        self.failure = failure

    def reset(self) -> None:
        self.sum = 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.sum += float((outputs.argmax(1) == targets).sum())

    def compute(self) -> float:
        self.failure.at("metric", 1)
        return self.sum

    def applies(self, outputs: Any, targets: Any) -> bool:
        return True


def train(folder: Path, failure: Failure | None = None, **settings: Any) -> bow.Result:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, CLASSES))
    failure = failure or Failure()
    how: dict[str, Any] = {"step": functools.partial(step_with, failure)}
    if failure.where == "metric":
        how = {"loss": nn.functional.cross_entropy, "validation": data(), "metrics": [Right(failure)]}
    arguments = {
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "batch_size": 4,
        "steps": STEPS,
        "engine": "eager",
        "seed": 5,
        "devices": 2,
        "learners": PER_ROUND,
        "progress": False,
        "callbacks": [failure],
        "checkpoint_every": 4,
        **how,
        **settings,
    }
    return bow.train(model.double(), Samples(failure), **grouped(run_dir=folder, **arguments))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bow.Result:
    """A training in which nothing fails."""
    return train(tmp_path_factory.mktemp("whole") / "run")


CASES = [
    (Failure("callback"), AT),
    (Failure("callback", (1,)), AT),
    (Failure("callback", (1,), after=7), 7),  # the last of an epoch
    (Failure("data", (0,)), AT),
    (Failure("data", (1,)), AT),
    (Failure("step"), AT),
    (Failure("step", (1,)), AT),
    (Failure("step", (0,)), AT),
    (Failure("step", (1,), first=False), 8),  # the other device has stepped by then
    (Failure("epoch", (1,)), 7),
    (Failure("metric", (0,)), 7),
]


@pytest.fixture(autouse=True)
def where_stepped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOW_TEST_STEPPED", str(tmp_path / "stepped"))


@pytest.mark.sample(2)
@pytest.mark.parametrize(("failure", "kept"), CASES, ids=[f"{each.where} {each.ranks} {kept}" for each, kept in CASES])
def test_an_exception_leaves_a_checkpoint(tmp_path: Path, whole: bow.Result, failure: Failure, kept: int) -> None:
    with soon(), pytest.raises((OSError, ClusterError), match="the picture is damaged") as caught:
        train(tmp_path / "run", failure)
    assert (caught.type is OSError) == (0 in failure.ranks)
    assert str(caught.value) == ("rank 1: OSError: " if caught.type is ClusterError else "") + "the picture is damaged"
    assert last_checkpoint(tmp_path / "run") == kept
    (note,) = caught.value.__notes__
    assert note.startswith(f"there is a checkpoint of round {kept}; resume with bow.train(..., run=bow.Run(")
    resumed = train(tmp_path / "run", dataclasses.replace(failure, ranks=()), resume="auto")
    assert_same(resumed, whole)


def assert_same(resumed: bow.Result, whole: bow.Result) -> None:
    for ours, theirs in zip(resumed.history, whole.history, strict=True):
        assert (ours["epoch"], ours["round"]) == (theirs["epoch"], theirs["round"])
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
    pairs = zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


OTHERS: list[tuple[Failure, dict[str, Any], int]] = [
    (Failure("callback", (1,)), {"engine": "graph", "step": None, "loss": nn.functional.cross_entropy}, AT),
    (Failure("step", (1,)), {"sync": bow.SSGD()}, AT),
    (Failure("step", (1,)), {"bucket_mb": 1.0}, 8),  # sums by Gloo
    (Failure("data", (1,)), {"bucket_mb": 1.0}, AT),
    (Failure("callback", (1,), first=False), {"sync": bow.LocalSGD(every=3)}, 8),  # the other has stepped in round 11
    (Failure("callback"), {"sync": bow.LocalSGD(every=3)}, AT),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("failure", "settings", "kept"), OTHERS)
def test_so_it_does_with_other_settings(tmp_path: Path, failure: Failure, settings: dict[str, Any], kept: int) -> None:
    with pytest.raises((OSError, ClusterError), match="the picture is damaged"):
        train(tmp_path / "run", failure, **settings)
    assert last_checkpoint(tmp_path / "run") == kept
    assert_same(train(tmp_path / "run", resume="auto", **settings), train(tmp_path / "whole", **settings))


class Kill:
    def on_round_end(self, run: Any) -> None:
        if run.round == AT and not run.replicas.world.leads:
            os.kill(os.getpid(), signal.SIGKILL)


def test_where_a_process_is_killed_nobody_waits_for_it_and_the_last_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="rank 1 ended with signal SIGKILL") as caught:
        train(tmp_path / "run", callbacks=[Kill()])
    assert caught.value.__notes__[0].startswith("there is a checkpoint of round 8; resume with")


def test_the_connections_of_a_process_are_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fresh interpreter: what it imports during the training may refer to its process group."""
    monkeypatch.delenv(PLACE, raising=False)  # no process is forked
    with soon(), pytest.raises(ClusterError, match="rank 1: OSError: the picture is damaged") as caught:
        train(tmp_path / "run", Failure("callback", (1,), after=1), checkpoint_every=100)
    assert caught.value.__notes__[0].startswith("there is a checkpoint of round 1; resume with")
