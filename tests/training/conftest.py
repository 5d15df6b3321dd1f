"""A training small enough for a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bow
from tests.grouped import grouped

TINY = {"learners": 2, "batch_size": 4, "engine": "eager", "devices": "cpu", "progress": False}


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    """48 samples that a linear model can tell apart, in three classes."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(48, 5, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


@pytest.fixture
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the report, which takes three quarters of so short a training."""
    monkeypatch.setattr("bow.observe.report.write_report", lambda run_dir: None)


@pytest.fixture
def train(tmp_path: Path, _no_report: None) -> Callable[..., bow.Result]:
    """`bow.train` with small defaults in `tmp_path / "run"`, without the report."""

    def run(model: Any, data: Any, loss: Any = ..., **settings: Any) -> bow.Result:
        if loss is ...:
            loss = None if "step" in settings else nn.functional.cross_entropy
        return bow.train(model, data, loss, **grouped(**{"run_dir": tmp_path / "run", **TINY, **settings}))

    return run
