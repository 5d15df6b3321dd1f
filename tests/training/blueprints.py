"""What tests of trials and of the tuner begin with: a small model, data, and a clock that goes by reading it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
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


def ticking(step_s: float = 0.001) -> Callable[[], float]:
    """A clock that goes on by a step whenever somebody looks at it."""
    return functools.partial(next, itertools.count(0.0, step_s))


def assert_same_course(one: bow.Result, other: bow.Result) -> None:
    """Two trainings came to the same model by the same epochs, to rounding."""
    weights = [torch.cat([p.flatten() for p in result.model.parameters()]) for result in (one, other)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-10)
    for name in ("round", "samples", "accuracy"):
        assert [epoch[name] for epoch in one.history] == [epoch[name] for epoch in other.history]
    losses = [torch.tensor([epoch["train_loss"] for epoch in result.history]) for result in (one, other)]
    torch.testing.assert_close(*losses)
