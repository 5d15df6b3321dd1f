"""Small trainings on the fake device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import bow
from bow.engines import STREAM_ENGINES
from bow.testing import FakeDevice
from tests.engines.pairs import batch, closed_later
from tests.grouped import of_replicas

ENGINES = list(STREAM_ENGINES)
LEARNERS, SIZE, CLASSES, BATCH = 2, 6, 3, 4  # as `batch` has them

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.01)


def model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    # No bias in front of batch norm: its gradient is rounding noise, for which a check runs the step ten times more.
    first = nn.Linear(SIZE, 8, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES)).double()


class Scaled(nn.Linear):
    """Reads a value in Python."""

    def __init__(self) -> None:
        super().__init__(SIZE, CLASSES)
        self.scale = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self.scale


def training(engine: Any, device: FakeDevice | str, build: Callable[[], nn.Module] = model, **settings: Any) -> Any:
    """It is closed behind the test."""
    settings = {"learners": LEARNERS, "optimizer": SGD, **settings}
    loss = None if "step" in settings else nn.functional.cross_entropy
    torch.manual_seed(0)
    return closed_later(bow.Replicas(build(), loss, **of_replicas(engine=engine, device=device, **settings)))


def beside_eager(engine: str, build: Callable[[], nn.Module] = model, **settings: Any) -> list[Any]:
    """The same training in `eager` and in an engine on the fake device."""
    return [training(name, where, build, **settings) for name, where in (("eager", "cpu"), (engine, FakeDevice()))]


def round_of(t: int, learners: int = LEARNERS) -> list[Any]:
    return [batch(100 * t + j) for j in range(learners)]
