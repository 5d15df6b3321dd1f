"""One AllReduce of one model a synchronisation task, begun before the learning tasks and waited for behind them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bow
from bow.cluster import PendingSum, TrialWorld
from bow.engines.graph_round import GraphRound
from bow.errors import ClusterError, DataError

EVENTS: list[str] = []


class Noted(PendingSum):
    def wait(self) -> None:
        EVENTS.append("waited for the sum")


class NotingWorld(TrialWorld):
    """Notes what it is asked for."""

    def sum(self, tensor: Tensor) -> PendingSum:
        self.sums += 1
        EVENTS.append(f"sum of {tensor.numel()} begun")
        return Noted()

    def sum_with_prefix(self, tensor: Tensor) -> Tensor | None:
        self.sums += 1
        return None


def silent_step(model: nn.Module, batch: Any) -> Tensor:
    return model(batch).square().mean()


def step(model: nn.Module, batch: Any) -> Tensor:
    EVENTS.append("learning task")
    return silent_step(model, batch)


def rounds(sync: Any, engine: str, count: int = 4, step: Any = step) -> tuple[NotingWorld, bow.Replicas]:
    EVENTS.clear()
    world = NotingWorld()
    replicas = bow.Replicas(
        nn.Linear(3, 2),
        step=step,
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        learners=3,
        engine=engine,  # type: ignore[arg-type]
        sync=sync,
        device="cpu",
        world=world,
    )
    for _ in range(count):
        replicas.round([torch.ones(2, 3)] * 3)
    replicas.close()
    return world, replicas


@pytest.mark.parametrize("engine", ["eager", "streams"])
def test_the_sum_travels_while_the_learners_learn(engine: str) -> None:
    world, replicas = rounds(bow.SMA(), engine)
    model = replicas.z.numel()
    expected = [f"sum of {model} begun", *["learning task"] * 3, "waited for the sum"]
    assert expected * 4 == EVENTS
    assert world.sums == 4


def test_the_sum_travels_while_executors_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    run = GraphRound.run

    def noted(self: GraphRound, team: Any, record: bool = False, between: Any = None) -> Any:
        EVENTS.append("learning tasks begun")
        outcome = run(self, team, record, between)
        EVENTS.append("stepped and averaged")
        return outcome

    monkeypatch.setattr(GraphRound, "run", noted)
    _, replicas = rounds(bow.SMA(), "graph", step=silent_step)
    sum_begun = f"sum of {replicas.z.numel()} begun"
    assert EVENTS[-4:] == [sum_begun, "learning tasks begun", "waited for the sum", "stepped and averaged"]


class Gone(PendingSum):
    def wait(self) -> None:
        EVENTS.append("waited for the sum")
        raise ClusterError("another process has ended")


def labelled_step(model: nn.Module, batch: Any) -> Tensor:
    inputs, label = batch
    return nn.functional.cross_entropy(model(inputs), label)


@pytest.mark.parametrize("cause", ["a learning task fails", "another process has gone"])
def test_a_round_that_fails_beside_the_sum_changes_nothing_and_waits_for_it_once(cause: str) -> None:
    world = NotingWorld()
    replicas = bow.Replicas(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        step=labelled_step,
        optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        learners=2,
        engine="graph",
        sync=bow.SMA(),
        device="cpu",
        world=world,
    )
    labels = torch.zeros(5, dtype=torch.int64)
    batch = torch.randn(5, 3), labels
    for _ in range(2):
        replicas.round([batch, batch])
    before = [replicas.W.clone(), replicas.z.clone(), *(b.clone() for b in replicas.central.buffers())]
    EVENTS.clear()
    if cause == "a learning task fails":
        batch, error = (batch[0], labels + 7), DataError
    else:
        world.sum = lambda tensor: Gone()  # type: ignore[method-assign]
        error = ClusterError  # type: ignore[assignment]
    with pytest.raises(error):
        replicas.round([batch, batch])
    assert EVENTS.count("waited for the sum") == 1
    after = [replicas.W, replicas.z, *replicas.central.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert replicas.rounds == 2
    replicas.close()


@pytest.mark.parametrize(
    ("sync", "sums"),
    [
        (bow.SMA(every=2), 2),
        (bow.EASGD(alpha=0.1), 4),
        (bow.SSGD(), 4),
        (bow.LocalSGD(every=4), 1),
        (bow.DiLoCo(every=4), 1),
        (bow.ASGD(), 4),
        (bow.Independent(), 0),
    ],
    ids=repr,
)
def test_there_is_one_sum_a_synchronisation_task(sync: Any, sums: int) -> None:
    world, _ = rounds(sync, "eager")
    assert world.sums == sums
