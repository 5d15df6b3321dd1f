"""Overhead of scheduling: many trivial operators."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import quartiles
from bow.schedule import FirstComeSchedule, PrioritySchedule, Schedule
from bow.schedule.profiler import BoundStep
from bow.schedule.profiler.measuring import ScheduledStep
from bow.schedule.scheduler import critical_path
from bow.timing import time_in_turns

IN_ORDER, BY_PRIORITY, FIRST_COME, AT_ONCE = "in order", "by priority", "first come", "small at once"


class Chains(nn.Module):
    """Independent chains of scalar additions."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self._length = length

    def forward(self, beginnings: Tensor) -> Tensor:
        """Return the ends of the chains, a number for each of the beginnings `[chains]`."""
        first, *_ = values = beginnings.unbind()
        for _ in range(self._length):
            values = tuple(value + first for value in values)
        ends: Tensor = torch.stack(values) * self.scale
        return ends


def chains(operators: int, width: int) -> BoundStep:
    """Return a step of `width` chains."""
    model = Chains(max(1, operators // width))
    return BoundStep.of(model, (torch.zeros(width), torch.zeros(width)), nn.functional.mse_loss)


def schedules(subject: BoundStep) -> dict[str, Schedule]:
    """Return schedules of one executor: with a given order, and with dynamic dispatch."""
    dependencies, count = subject.dependencies, subject.num_operators
    levels = tuple(int(level) for level in critical_path(dependencies, [1] * count).levels)
    return {
        IN_ORDER: Schedule.sequential(count),
        BY_PRIORITY: PrioritySchedule((1,), priority=levels),
        FIRST_COME: FirstComeSchedule((1,)),
        AT_ONCE: PrioritySchedule((1,), priority=levels, small=tuple(range(count))),
    }


def measure_cost(operators: int, width: int, turns: int, stint_s: float) -> dict[str, Any]:
    """Nanoseconds per operator: total in a given order, and the overhead of decisions, paired by turn."""
    subject = chains(operators, width)
    contestants = {name: ScheduledStep(subject, schedule) for name, schedule in schedules(subject).items()}
    # The calling thread is the executor, so that its CPU time excludes other programs.
    seconds = time_in_turns(contestants, turns=turns, window_s=stint_s, clock=time.thread_time)
    added = {name: _added(own, seconds[IN_ORDER]) for name, own in seconds.items() if name != IN_ORDER}
    each = 1e9 / subject.num_operators
    return {
        "operators": subject.num_operators,
        "ready_at_once": width,
        "in_order_ns": quartiles(seconds[IN_ORDER], 1, scale=each),
        "added_ns": {name: quartiles(own, 1, scale=each) for name, own in added.items()},
    }


def _added(seconds: Sequence[float], base: Sequence[float]) -> list[float]:
    return [own - other for own, other in zip(seconds, base, strict=True)]
