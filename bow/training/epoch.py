"""Losses and step values of an epoch, and detection of diverged trainings."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bow.cluster import World
from bow.data import Deal
from bow.engines import OnNan, Outcome
from bow.engines.restarts import REMEDY
from bow.errors import DivergenceError, SettingError
from bow.training.context import Learners
from bow.training.metrics import RESERVED

MOST_LOST = 0.5  # largest part of an epoch's steps that may be discarded as not finite
OF_TRAINING = "train"  # prefix, in records, of values from training steps
LOSS = "loss"  # a step's values have other names


class TaskValues:
    """A value by learning task, NaN where there is none, and the samples of each task."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self._samples: list[float] = []  # one list: a tuple for every round would be work for the garbage collector

    def add(self, values: Tensor, samples: Sequence[float]) -> None:
        self.values.append(values)
        self._samples += samples

    def add_saved(self, table: Tensor, device: torch.device) -> None:
        self.add(table[0].to(device), table[1].tolist())

    @property
    def mean(self) -> float:
        """The mean over samples."""
        return _mean(*self.sums)

    @property
    def table(self) -> Tensor:
        """Values and samples `[2, tasks]`, in double precision."""
        values = torch.cat(self.values).cpu().double() if self.values else torch.empty(0)
        return torch.stack([values, torch.tensor(self._samples, dtype=torch.float64)])

    @property
    def sums(self) -> tuple[float, float]:
        """The sum of the values, each times its samples, and the number of samples."""
        table = self.table
        there = table[:, ~table[0].isnan()]
        return float(there.prod(0).sum()), float(there[1].sum())


class Epoch:
    """Losses and values of steps since the last epoch ended, and how many were discarded."""

    def __init__(self, replicas: Learners) -> None:
        self._replicas = replicas
        self._world = replicas.world
        self._values = defaultdict[str, TaskValues](TaskValues)
        self._tasks = 0
        self._restarts_before = 0

    def add(self, outcome: Outcome, deal: Deal) -> None:
        self._tasks += sum(outcome.active)
        samples = self._sizes(deal)
        self._values[LOSS].add(outcome.losses, samples)
        for name, values in outcome.metrics.items():
            if name not in RESERVED:
                self._values[name].add(values, samples)

    def loss_of(self, outcome: Outcome, deal: Deal) -> float:
        """Return the mean loss over the samples of a round, on all devices."""
        own = TaskValues()
        own.add(outcome.losses, self._sizes(deal))
        return _means({LOSS: own}, self._world)[LOSS]

    def check_values(self, of_validation: Iterable[str]) -> None:
        for name in {recorded(name) for name in self._values}.intersection(of_validation):
            raise SettingError(
                f"a value of the step in training and one of the validation data would both be recorded as {name!r}; "
                f"name it without {OF_TRAINING}_"
            )

    def take_values(self) -> dict[str, float]:
        """Return and clear the means of losses and values over the samples of all devices, by names in records."""
        means = {LOSS: math.nan} | _means(self._values, self._world)
        self._values.clear()
        return {recorded(name): value for name, value in means.items()}

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
        """Return losses and values with their samples, and counts, of all devices at rank 0; None elsewhere."""
        steps = [self._replicas.loop.num_restarts - self._restarts_before, self._tasks]
        gathered = self._world.gather(({name: own.table for name, own in self._values.items()}, steps))
        if gathered is None:
            return None
        by_device = [values for values, _ in gathered]
        counted = [sum(each) for each in zip(*(own for _, own in gathered), strict=True)]
        values = {name: torch.cat([each[name] for each in by_device if name in each], 1) for name in _names(by_device)}
        return {"step_values": values, "epoch_steps": counted}

    def load(self, values: Mapping[str, Tensor] | None, state: Mapping[str, Any]) -> None:
        self._restarts_before = self._replicas.loop.num_restarts
        if self._world.leads:
            lost, self._tasks = state["epoch_steps"]
            self._restarts_before -= lost
            for name, own in (values or {}).items():
                self._values[name].add_saved(own, self._replicas.device)

    def _sizes(self, deal: Deal) -> Sequence[int]:
        # A learner of a partition counts on the first of its devices, whose batches it trains on.
        is_counted = self._replicas.group.by_device[self._world.rank]
        return deal.sizes if is_counted else [0] * len(deal.sizes)


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


def _mean(total: float, samples: float) -> float:
    return total / samples if samples else math.nan


def _means(values: Mapping[str, TaskValues], world: World) -> dict[str, float]:
    by_device = world.all_gather({name: own.sums for name, own in values.items()})
    sums = {name: [each[name] for each in by_device if name in each] for name in _names(by_device)}
    return {name: _mean(*map(sum, zip(*each, strict=True))) for name, each in sums.items()}


def _names(by_device: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for each in by_device for name in each))
