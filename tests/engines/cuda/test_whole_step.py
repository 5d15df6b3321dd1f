"""A graph holds the whole step: Adam, AdamW and clipping with all else of a round, equal to `eager`."""

from __future__ import annotations

import functools
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import bow
from bow.data import open_stream
from bow.engines.cuda.loop import DeviceRoundLoop
from bow.engines.cuda.pending import PendingRounds
from bow.testing import FakeDevice
from tests.engines.cuda.trainings import ADAMW, BATCH, CLASSES, LEARNERS, SIZE, round_of, training
from tests.engines.pairs import are_equal, batch

pytestmark = [
    pytest.mark.usefixtures("_uncompiled"),
    pytest.mark.filterwarnings("ignore:fused is not compiled"),
    pytest.mark.filterwarnings("ignore:learner .*restarts"),
]

OPTIMIZERS = {
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01, eps=1e-4, weight_decay=0.05),
    "adam": functools.partial(torch.optim.Adam, lr=0.01, eps=1e-4, weight_decay=0.01),
    "nesterov": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
}
TOLERANCE = 1e-10


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def nan_batch() -> tuple[Tensor, Tensor]:
    return torch.full((BATCH, SIZE), torch.nan, dtype=torch.float64), batch(0)[1]


def trained(engine: Any, device: Any, rounds: list[list[Any]], **settings: Any) -> tuple[Tensor, Tensor, str]:
    replicas = training(engine, device, **settings)
    for batches in rounds:
        replicas.round(batches)
    replicas.training_state()
    return replicas.W.detach().clone(), replicas.z.detach().clone(), replicas.engine


def check_follows_eager(engine: str, rounds: list[list[Any]], **settings: Any) -> None:
    expected = trained("eager", "cpu", rounds, **settings)
    found = trained(engine, FakeDevice(), rounds, **settings)
    assert found[2] == engine
    for own, other in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(own, other, rtol=TOLERANCE, atol=TOLERANCE)


def every_setting() -> Iterator[Any]:
    """Any two settings meet in one of the cases that always run; the others are nightly."""
    table = itertools.product(*map(enumerate, (("graph+round", "fused"), (None, 0.1), OPTIMIZERS, (1, 2))))
    for (engine, clip_norm, optimizer, every), case in (zip(*each, strict=True) for each in table):
        is_by_day = clip_norm == (engine + optimizer % 2) % 2 and every == (engine + optimizer // 2) % 2
        yield pytest.param(*case, marks=() if is_by_day else pytest.mark.nightly)


@pytest.mark.parametrize(("engine", "clip_norm", "optimizer", "every"), list(every_setting()))
def test_it_follows_eager(engine: str, clip_norm: float | None, optimizer: str, every: int) -> None:
    rounds = [round_of(t) for t in range(5)]
    rounds.insert(3, [batch(7), None])  # a learner without a batch: not captured
    settings = {"optimizer": OPTIMIZERS[optimizer], "clip_norm": clip_norm, "sync": bow.SMA(every=every)}
    check_follows_eager(engine, rounds, **settings)


def test_a_learner_that_diverges_starts_again_at_once_with_a_fresh_optimizer() -> None:
    rounds = [round_of(t) for t in range(7)]
    rounds[3][1] = nan_batch()
    check_follows_eager("graph+round", rounds, build=plain, optimizer=ADAMW)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_model_in_bfloat16_steps_by_numbers_that_bfloat16_has_not(optimizer: str) -> None:
    settings = {"build": lambda: plain().bfloat16(), "clip_norm": 1.0, "optimizer": OPTIMIZERS[optimizer]}
    rounds = [[(inputs.bfloat16(), targets) for inputs, targets in round_of(t)] for t in range(6)]
    expected, found = (
        trained("eager", "cpu", rounds, **settings),
        trained("graph+round", FakeDevice(), rounds, **settings),
    )
    assert found[2] == "graph+round"
    torch.testing.assert_close(found[0], expected[0], rtol=0.02, atol=0.01)


def test_its_state_goes_on_in_another_engine() -> None:
    rounds = [round_of(t) for t in range(6)]
    expected = trained("eager", "cpu", rounds, optimizer=OPTIMIZERS["adamw"])
    first = training("graph+round", FakeDevice(), optimizer=OPTIMIZERS["adamw"])
    for batches in rounds[:3]:
        first.round(batches)
    second = training("eager", "cpu", optimizer=OPTIMIZERS["adamw"])
    second.load_training_state(first.training_state())
    third = training("graph+round", FakeDevice(), optimizer=OPTIMIZERS["adamw"])
    third.load_training_state(first.training_state())
    for replicas in (second, third):
        for batches in rounds[3:]:
            replicas.round(batches)
        replicas.training_state()
        torch.testing.assert_close(replicas.W.detach(), expected[0], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("engine", ["graph", "graph+round", "streams"])
def test_a_round_that_was_issued_is_counted_before_ctrl_c_ends_it(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (training(engine, FakeDevice(), optimizer=ADAMW) for _ in range(2))
    add = PendingRounds.add

    def interrupted(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        add(*given)

    for t in range(2):
        one.round(round_of(t))
    with monkeypatch.context() as patched:
        patched.setattr(PendingRounds, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.round(round_of(2))
    assert one.rounds == 3
    one.round(round_of(3))
    for t in range(4):
        other.round(round_of(t))
    assert are_equal(*(each.training_state() for each in (one, other)))


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_one_learner_is_one_graph_a_step(precision: str | None) -> None:
    """Engine `graph` as it is named, with one learner: a replay, the batch, the results, and nothing else."""
    device = FakeDevice()
    replicas = training("graph", device, learners=1, optimizer=ADAMW, clip_norm=0.5, precision=precision)
    eager = training("eager", "cpu", learners=1, optimizer=ADAMW, clip_norm=0.5, precision=precision)
    schedulers = [torch.optim.lr_scheduler.StepLR(each.optimizer, 2, 0.5) for each in (replicas, eager)]
    with torch.no_grad():
        for t in range(10):
            before, replays = dict(device.launches), device.replays
            for each, scheduler in zip((replicas, eager), schedulers, strict=True):
                each.round(round_of(t, 1))
                scheduler.step()
            if t == 9:
                outside = {name: count - before.get(name, 0) for name, count in device.launches.items()}
                assert device.replays == replays + 1
                assert sum(count for name, count in outside.items() if not name.startswith("graph")) < 30
    replicas.training_state()
    assert replicas.engine == "graph+round"
    torch.testing.assert_close(replicas.W.detach(), eager.W.detach(), rtol=TOLERANCE, atol=TOLERANCE)


def test_what_is_asked_for_by_name_is_what_runs() -> None:
    for engine, runs in (("graph", "graph"), (bow.Engine("graph", capture="learner"), "graph")):
        replicas = training(engine, FakeDevice(), learners=2 if engine == "graph" else 1)
        assert replicas.engine == runs
        replicas.close()


def unrolled(
    engine: str, device: FakeDevice, data: tuple[Tensor, Tensor], rounds: int, drop_at: int = -1, **settings: Any
) -> tuple[list[Tensor], list[Any]]:
    """Losses, and the state behind rounds on samples that lie on the device, issued eight by eight."""
    learners = settings.get("learners", LEARNERS)
    replicas = training(engine, device, build=plain, **settings)
    stream = open_stream(data, batch_size=BATCH, steps=rounds)
    assert stream.reside(torch.device("cpu"), room_bytes=0)
    losses: list[Tensor] = []
    while len(losses) < rounds:
        if len(losses) == drop_at:
            replicas.optimizer.param_groups[0]["lr"] /= 10
        deals = [stream.deal(learners) for _ in range(min(8, rounds - len(losses)))]
        given = [each.batches for each in deals if each is not None]
        losses += [each.losses for each in replicas.rounds_at_once(given)]
    return losses, tree_leaves(replicas.training_state())


UNROLLED: list[tuple[str, dict[str, Any], int]] = [
    ("graph+round", {}, 7),
    ("graph+round", {"optimizer": ADAMW, "clip_norm": 0.1}, 7),
    ("graph+round", {"sync": bow.SMA(restart="drop"), "drop_at": 24}, 6),
    ("graph+round", {"sync": bow.SMA(every=2)}, 0),
    ("graph", {"learners": 1, "optimizer": ADAMW}, 7),
    ("fused", {"optimizer": ADAMW}, 7),
]


@pytest.mark.parametrize(
    ("engine", "settings", "calls", "diverges"),
    [  # every second one diverges; `--nightly` has them all
        pytest.param(*case, diverges, marks=pytest.mark.nightly if diverges != number % 2 else ())
        for number, case in enumerate(UNROLLED)
        for diverges in (False, True)
    ],
)
def test_rounds_that_one_graph_holds_are_those_that_are_issued_one_by_one(
    engine: str, settings: dict[str, Any], calls: int, diverges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.engines.live_check.FREE_CHECKS_S", 0.0)  # looked at in the first rounds alone
    monkeypatch.setattr("bow.engines.live_check.SHARE", 1e-9)
    data = batch(0, samples=12 * 40)
    if diverges:
        data[0][200] = torch.inf
    devices, found = [FakeDevice(), FakeDevice()], []
    for device, unrolls in zip(devices, (False, True), strict=True):
        with monkeypatch.context() as patched:
            if not unrolls:
                patched.setattr(DeviceRoundLoop, "_unrolls", lambda *_: False)
            found.append(unrolled(engine, device, data, 37, **settings))
    for own, other in zip(*(losses for losses, _ in found), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0, equal_nan=True)
    for own, other in zip(*(state for _, state in found), strict=True):
        if isinstance(own, Tensor):
            torch.testing.assert_close(own, other, rtol=0, atol=0, equal_nan=True)
        else:
            assert own == other
    one_by_one, together = (device.replays for device in devices)
    # Of nine times four rounds the first two are looked at one by one, and so are those where the rate has dropped.
    assert one_by_one - together == 3 * calls
