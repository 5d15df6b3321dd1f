"""What steps returned beside the loss, since the last evaluation at the end of an epoch."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from bow.engines import Outcome
from bow.training.context import Learners
from bow.training.metrics import RESERVED

OF_TRAINING = "train"
"""How names in records begin of what is not of the validation data."""


class StepValues:
    """The values of learning tasks by name, each with the samples that it counts for."""

    def __init__(self, replicas: Learners) -> None:
        self._replicas = replicas
        self._values = defaultdict[str, list[tuple[Tensor, float | Tensor]]](list)

    def add(self, outcome: Outcome, num_samples: int) -> None:
        """Count a round."""
        of_device = num_samples * self._replicas.learners / self._replicas.group.num_all
        for name, values in outcome.metrics.items():
            if name not in RESERVED:
                self._values[name].append((values, of_device / max(sum(outcome.active), 1)))

    def take(self) -> dict[str, float]:
        """The means over the samples of all devices, by their names in records; the next epoch begins."""
        by_device = self._replicas.world.all_gather({name: _sums(_table(own)) for name, own in self._values.items()})
        self._values.clear()
        means = {}
        for name in _names(by_device):
            total, count = map(sum, zip(*(each[name] for each in by_device if name in each), strict=True))
            known = name if name.startswith(OF_TRAINING) else f"{OF_TRAINING}_{name}"
            means[known] = total / count if count else float("nan")
        return means

    def state(self) -> dict[str, Tensor]:
        """By name, values of all devices and samples `[2, tasks]` at rank 0, for a checkpoint."""
        by_device = self._replicas.world.gather({name: _table(own) for name, own in self._values.items()}) or []
        return {name: torch.cat([each[name] for each in by_device if name in each], 1) for name in _names(by_device)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on within an epoch of a checkpoint's training."""
        if self._replicas.world.leads:
            for name, (values, samples) in state.items():
                self._values[name] = [(values.to(self._replicas.device), samples)]


def _table(values: Sequence[tuple[Tensor, float | Tensor]]) -> Tensor:
    samples = [torch.as_tensor(count, dtype=torch.float64).expand(len(each)) for each, count in values]
    return torch.stack([torch.cat([each for each, _ in values]).cpu().double(), torch.cat(samples)])


def _sums(table: Tensor) -> tuple[float, float]:
    there = table[:, ~table[0].isnan()]
    return float(there.prod(0).sum()), float(there[1].sum())


def _names(by_device: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for each in by_device for name in each))
