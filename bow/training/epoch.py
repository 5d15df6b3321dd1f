"""Losses and step values of an epoch, and detection of diverged trainings."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bow.cluster import World
from bow.engines import OnNan, Outcome
from bow.engines.restarts import REMEDY
from bow.errors import DivergenceError, SettingError
from bow.training.context import Learners
from bow.training.metrics import RESERVED, mean_of

MOST_LOST = 0.5  # largest part of an epoch's steps that may be discarded as not finite
OF_TRAINING = "train"  # prefix, in records, of values from training steps


class Epoch:
    """Losses and values of steps since the last epoch ended, and how many were discarded."""

    def __init__(self, replicas: Learners) -> None:
        self._replicas = replicas
        self._world = replicas.world
        self._losses: list[Tensor] = []
        self._values = defaultdict[str, list[tuple[Tensor, float | Tensor]]](list)  # with their weights in samples
        self._tasks = 0
        self._restarts_before = 0

    def add(self, outcome: Outcome, num_samples: int) -> None:
        self._losses.append(outcome.losses)
        self._tasks += sum(outcome.active)
        for name, values in outcome.metrics.items():
            if name not in RESERVED:
                of_device = num_samples * self._replicas.learners / self._replicas.group.num_all
                self._values[name].append((values, of_device / max(sum(outcome.active), 1)))

    def mean_loss(self) -> float:
        return mean_loss(self._losses, self._world)

    def check_values(self, of_validation: Iterable[str]) -> None:
        for name in {recorded(name) for name in self._values}.intersection(of_validation):
            raise SettingError(
                f"a value of the step in training and one of the validation data would both be recorded as {name!r}; "
                f"name it without {OF_TRAINING}_"
            )

    def take_values(self) -> dict[str, float]:
        """Return and clear the step values' means over the samples of all devices, by their names in records."""
        tables = {name: _table(own) for name, own in self._values.items()}
        there = {name: table[:, ~table[0].isnan()] for name, table in tables.items()}
        sums = {name: (float(each.prod(0).sum()), float(each[1].sum())) for name, each in there.items()}
        by_device = self._world.all_gather(sums)
        self._values.clear()
        means = {}
        for name in _names(by_device):
            total, count = map(sum, zip(*(each[name] for each in by_device if name in each), strict=True))
            means[recorded(name)] = total / count if count else float("nan")
        return means

    def end(self) -> None:
        self._losses = []

    def check_divergence(self, on_nan: OnNan, has_ended: bool) -> None:
        restarts = self._replicas.loop.num_restarts
        own = [restarts - self._restarts_before, self._tasks]
        lost, tasks = map(int, self._world.sum_numbers(own))
        self._restarts_before, self._tasks = restarts, 0
        if lost > MOST_LOST * tasks and on_nan != "continue" and not has_ended:
            raise DivergenceError(
                f"training diverged: {lost} of the last {tasks} steps were discarded because loss, gradient or "
                f"weights were not finite; {REMEDY}"
            )

    def state(self) -> dict[str, Any] | None:
        """Return losses, values with their samples `[2, tasks]` and counts of all devices at rank 0; None elsewhere."""
        losses = torch.cat(self._losses).cpu() if self._losses else torch.empty(0)
        steps = [self._replicas.loop.num_restarts - self._restarts_before, self._tasks]
        gathered = self._world.gather((losses, {name: _table(own) for name, own in self._values.items()}, steps))
        if gathered is None:
            return None
        by_device = [values for _, values, _ in gathered]
        counted = [sum(each) for each in zip(*(own for _, _, own in gathered), strict=True)]
        values = {name: torch.cat([each[name] for each in by_device if name in each], 1) for name in _names(by_device)}
        of_all = torch.cat([own for own, _, _ in gathered])
        return {"epoch_losses": of_all, "step_values": values, "epoch_steps": counted}

    def load(self, losses: Tensor | None, state: Mapping[str, Any]) -> None:
        self._losses = [] if losses is None else [losses.to(self._replicas.device)]
        self._restarts_before = self._replicas.loop.num_restarts
        if self._world.leads:
            lost, self._tasks = state.get("epoch_steps", (0, 0))
            self._restarts_before -= lost
            values: Mapping[str, Tensor] = state.get("step_values") or {}
            for name, (own, samples) in values.items():
                self._values[name] = [(own.to(self._replicas.device), samples)]


def recorded(name: str) -> str:
    """The name in records of a value that a step returns in training."""
    return name if name.startswith(OF_TRAINING) else f"{OF_TRAINING}_{name}"


def check_recorded(of_step: Iterable[str]) -> None:
    owners: dict[str, str] = {}
    for name in of_step:
        known = recorded(name)
        if known in owners:
            raise SettingError(
                f"a value of the step in training is recorded as {known!r}, but another value is named "
                f"{owners[known]!r}; rename one"
            )
        owners[known] = name


def mean_loss(by_round: list[Tensor], world: World) -> float:
    if world.is_one:
        return mean_of(by_round)
    losses = torch.cat([loss.reshape(-1) for loss in by_round]) if by_round else torch.empty(0)
    there = losses[~losses.isnan()].double()
    total, count = world.sum_numbers([float(there.sum()), float(len(there))])
    return total / count if count else float("nan")


def _table(values: Sequence[tuple[Tensor, float | Tensor]]) -> Tensor:
    samples = [torch.as_tensor(count, dtype=torch.float64).expand(len(each)) for each, count in values]
    return torch.stack([torch.cat([each for each, _ in values]).cpu().double(), torch.cat(samples)])


def _names(by_device: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for each in by_device for name in each))
