"""The same training in `eager` and in another engine, compared after every round."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.utils._pytree import tree_leaves

import bow
from bow.engines import ENGINES, STREAM_ENGINES
from bow.testing import FakeDevice
from tests.grouped import of_replicas

TOLERANCE = 1e-10
SEED = 0

OPEN: list[bow.Replicas] = []
"""What is closed behind each test."""


def closed_later(replicas: bow.Replicas) -> bow.Replicas:
    OPEN.append(replicas)
    return replicas


FAKE = "@fake"
"""Behind the name of an engine: on the fake device, which checks the order of all accesses."""

OTHERS = [name for name in ENGINES if name != "eager"] + [name + FAKE for name in STREAM_ENGINES]
"""The engines that have to follow `eager`."""

# AdamW moves a weight by up to lr / eps times the rounding error of a gradient that is nothing but rounding error.
# With eps=1e-4 that is 100 times, and far below TOLERANCE on every processor; torch's 1e-8 makes it a million times.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01, eps=1e-4, weight_decay=0.05),
}


class Pair:
    """Two trainings of one model in float64; the learning rate falls on the way, so that `SMA` restarts.

    Args:
        engine: what is compared with `eager`; with `@fake` behind its name on a fake device.
        build: makes the model.
        loss: of outputs and targets.
        optimizer: a name in `OPTIMIZERS`.
        learners: how many.
        sync: makes a synchroniser.
        compile: whether the other engine compiles.
        settings: further arguments of `bow.Replicas`, for both.
    """

    def __init__(
        self,
        engine: str,
        build: Callable[[], nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        *,
        optimizer: str = "momentum",
        learners: int = 3,
        sync: Callable[[], Any] = bow.SMA,
        compile: bool = False,
        **settings: Any,
    ) -> None:
        torch.manual_seed(SEED)
        other, _, where = engine.partition("@")
        self._where = "@" + where if where else ""
        devices = ["cpu", FakeDevice() if where else "cpu"]
        model = build().double()
        self.trainings = [
            bow.Replicas(
                model,
                loss,
                **of_replicas(
                    optimizer=OPTIMIZERS[optimizer],
                    learners=learners,
                    engine=name,
                    sync=sync(),
                    device=devices[index],
                    seed=SEED,
                    compile=compile and index == 1,
                    # By itself it is a whole round where there is one learner.
                    **({"capture": "learner"} if where and name == "graph" else {}),
                    **settings,
                ),
            )
            for index, name in enumerate(("eager", other))
        ]
        self.schedulers = [StepLR(training.optimizer, 7, gamma=0.3) for training in self.trainings]

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *error: object) -> None:
        """End the threads of engines that have some."""
        for training in self.trainings:
            training.close()

    @property
    def engine(self) -> str:
        """What ran beside `eager`, after any fallback."""
        return self.trainings[1].engine + self._where

    def round(self, batches: list[Any]) -> None:
        expected, actual = (training.round(batches) for training in self.trainings)
        for scheduler in self.schedulers:
            scheduler.step()
        torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE, equal_nan=True)
        self.compare()

    def compare(self) -> None:
        eager, other = self.trainings
        assert other.learners == eager.learners
        assert_alike(other, eager)
        modules = [(training.learner(j) for j in range(training.learners)) for training in self.trainings]
        for expected, actual in [*zip(*modules, strict=True), (eager.central, other.central)]:
            buffers = dict(actual.named_buffers()), dict(expected.named_buffers())
            torch.testing.assert_close(*buffers, rtol=0, atol=TOLERANCE)


def batch(seed: int, samples: int = 4) -> tuple[Tensor, Tensor]:
    """Six features in float64, and three classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (samples,), generator=generator)


def assert_alike(one: bow.Replicas, other: bow.Replicas, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(one.W, other.W, rtol=0, atol=tolerance)
    torch.testing.assert_close(one.z, other.z, rtol=0, atol=tolerance)


def are_equal(one: Any, other: Any) -> bool:
    """Whether two states are the same, bit for bit."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)
