"""What tests of trainings share: small models and data, callbacks and metrics, a clock that goes by reading it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset

import bow
from bow.data import batch_of, open_stream
from bow.engines import LearningConfig, step_from_loss
from bow.training.batches import DataSource
from bow.training.replicas import ReplicasConfig
from bow.training.trials import Request
from tests.grouped import grouped

Train = Callable[..., bow.Result]
Data = tuple[Tensor, Tensor]

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)

SAMPLES = 400


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 5, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def replicas_config(**settings: Any) -> ReplicasConfig:
    own = {each.name for each in dataclasses.fields(ReplicasConfig)}
    of_task = {name: settings.pop(name) for name in [*settings] if name not in own}
    task = LearningConfig(of_task.pop("step", step_from_loss(cross_entropy)), **grouped(**of_task))
    given: dict[str, Any] = {
        "model": linear(),
        "task": task,
        "optimizer": SGD,
        "sync": bow.SMA(),
        "device": torch.device("cpu"),
        "buffers": "average",
        "example": None,
    }
    return ReplicasConfig(**{**given, **settings})


def opened(data: Any = None, **settings: Any) -> DataSource:
    given = {"batch_size": 4, "epochs": 1, "steps": None, "seed": 0}
    return DataSource(samples() if data is None else data, **{**given, **settings})


def request(**settings: Any) -> Request:
    given: dict[str, Any] = {
        "engine": "auto",
        "learners": "auto",
        "compile": False,
        "batch_size": 4,
        "most": 4,
        "samples": 1e8,
        "rounds": 1000,
        "rule": 3,
        "replicas": replicas_config(),
    }
    return Request(**{**given, **settings})


def dealt(data: Any, batch_size: int, **length: Any) -> Iterator[Any]:
    """The batches that bow deals to one learner, for the loop that users write without it."""
    stream = open_stream(data, batch_size=batch_size, **length)
    while (deal := stream.deal(1)) is not None:
        yield batch_of(deal.batches, 0)


class Iterated(IterableDataset[Any]):
    """Samples without a length, in order: from the beginning in every pass, but once where they are an iterator."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


class Ask:
    """Sends this process a signal behind a round, as often as it is told to."""

    def __init__(self, number: int, at: int, times: int = 1) -> None:
        self.number, self.at, self.times = number, at, times

    def on_round_end(self, run: Any) -> None:
        if run.round == self.at:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


@dataclasses.dataclass
class Behind:
    """Calls a function behind every round."""

    on_round_end: Callable[[Any], object]


class PowerCut(Exception):
    """An error that no code of bow raises."""


class StopAfter:
    """Ends a training as a crash would, without another checkpoint, or by an error that leaves one."""

    def __init__(self, rounds: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.rounds, self.error = rounds, error

    def on_round_end(self, run: Any) -> None:
        if run.round == self.rounds:
            raise self.error


class Given(bow.Metric):
    """Comes to the next of the given values in every evaluation."""

    def __init__(self, name: str, values: Iterable[float], higher_is_better: bool = True) -> None:
        self.name, self.values, self.higher_is_better = name, iter(values), higher_is_better

    def reset(self) -> None: ...

    def applies(self, outputs: Any, targets: Any) -> bool:
        return True

    def update(self, outputs: Any, targets: Any) -> None: ...

    def compute(self) -> float:
        return next(self.values)


def ticking(step_s: float = 0.001) -> Callable[[], float]:
    """A clock that goes on by a step whenever somebody looks at it."""
    return functools.partial(next, itertools.count(0.0, step_s))


def assert_equal_models(one: nn.Module, other: nn.Module) -> None:
    """Two models have the same state, bit for bit."""
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name, value in theirs.items() if not torch.equal(ours[name], value)] == []


def assert_same_course(one: bow.Result, other: bow.Result) -> None:
    """Two trainings came to the same model by the same epochs, to rounding."""
    weights = [torch.cat([p.flatten() for p in result.model.parameters()]) for result in (one, other)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-10)
    for name in ("round", "samples", "accuracy"):
        assert [epoch[name] for epoch in one.history] == [epoch[name] for epoch in other.history]
    losses = [torch.tensor([epoch["train_loss"] for epoch in result.history]) for result in (one, other)]
    torch.testing.assert_close(*losses)
