"""One AllReduce of one model a synchronisation task, begun before the learning tasks and waited for behind them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bow
from bow.cluster import Pending, StandIn

EVENTS: list[str] = []


class Noted(Pending):
    def wait(self) -> None:
        EVENTS.append("waited for the sum")


class NotingWorld(StandIn):
    """Notes what it is asked for."""

    def sum(self, tensor: Tensor) -> Pending:
        self.sums += 1
        EVENTS.append(f"sum of {tensor.numel()} begun")
        return Noted()

    def sums_before(self, tensor: Tensor) -> Tensor | None:
        self.sums += 1
        return None


def step(model: nn.Module, batch: Any) -> Tensor:
    EVENTS.append("learning task")
    return model(batch).square().mean()


def rounds(sync: Any, engine: str, count: int = 4) -> tuple[NotingWorld, bow.Replicas]:
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
