"""Trainings by placed strategies, whose losses and times are looked at."""

import functools
import itertools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bow
from bow.models import sequence_cross_entropy
from bow.planning.problem.partition import Partition

OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9)

WARM_UP = 10  # Steps whose time does not count, or half of a training that is shorter


@dataclass(frozen=True)
class Training:
    """How a training went."""

    losses: Sequence[float]  # of all steps
    steps_ms: Sequence[float]  # milliseconds of each step behind the warm-up
    weights: Tensor = field(repr=False)  # of the trained model, in a row

    def loss_off(self, other: "Training") -> float:
        """The largest difference of two trainings' losses, relative to the loss."""
        return max(abs(a - b) / abs(b) for a, b in zip(self.losses, other.losses, strict=True))

    def weight_off(self, other: "Training") -> float:
        """The largest difference of two trainings' weights, relative to the largest weight."""
        return float((self.weights - other.weights).abs().max() / other.weights.abs().max())


class Watch(bow.Callback):
    """Notes the loss of every step, and when it was there."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.ends_s: list[float] = []

    def on_round_end(self, run: Any) -> None:
        """Take note."""
        self.losses.append(float(run.replicas.last.losses.mean()))
        self.ends_s.append(time.perf_counter())


def train(
    model: nn.Module, data: tuple[Tensor, Tensor], strategy: Partition, devices: int, batch: int, steps: int
) -> Training:
    """Train a language model by a strategy."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        result = bow.train(
            model,
            data,
            sequence_cross_entropy,
            optimizer=OPTIMIZER,
            batch_size=batch,
            steps=steps,
            devices=devices,
            strategy=strategy,
            strategy_check=False,
            callbacks=[watch],
            run_dir=Path(folder) / "run",
            progress=False,
        )
    warm = min(WARM_UP, steps // 2)
    ends = watch.ends_s[warm - 1 :]
    steps_ms = [1e3 * (end - start) for start, end in itertools.pairwise(ends)]
    weights = torch.cat([parameter.detach().flatten() for parameter in result.model.parameters()])
    return Training(watch.losses, steps_ms, weights)
