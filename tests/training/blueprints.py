"""What tests of trials and of the tuner begin with: a small model, data, and a clock that goes by reading it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow.engines import step_from_loss
from bow.training.blueprint import Blueprint
from bow.training.lanes import Request
from bow.training.opened import Opened

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)

SAMPLES = 400


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 5, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def blueprint(**settings: Any) -> Blueprint:
    given: dict[str, Any] = {
        "model": linear(),
        "step": step_from_loss(cross_entropy),
        "optimizer": SGD,
        "sync": bow.SMA(),
        "device": torch.device("cpu"),
        "dispatch": "fixed",
        "precision": None,
        "clip_norm": None,
        "memory": "device",
        "on_nan": "restart",
        "buffers": "average",
        "seed": 0,
        "example": None,
    }
    return Blueprint(**{**given, **settings})


def opened(data: Any = None, **settings: Any) -> Opened:
    given = {"batch_size": 4, "epochs": 1, "steps": None, "seed": 0}
    return Opened(samples() if data is None else data, **{**given, **settings})


def request(**settings: Any) -> Request:
    given: dict[str, Any] = {
        "engine": "auto",
        "learners": "auto",
        "compile": False,
        "batch_size": 4,
        "most": 4,
        "samples": 1e8,
        "rounds": 1000,
    }
    return Request(**{**given, **settings})


def ticking(step_s: float = 0.001) -> Callable[[], float]:
    """A clock that goes on by a step whenever somebody looks at it."""
    return functools.partial(next, itertools.count(0.0, step_s))
