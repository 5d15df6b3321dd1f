"""What scheduling costs by itself: many operators that do next to nothing, and decisions without operators."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import quartiles
from bow.runtime.local import operators_of
from bow.schedule import FirstComeSchedule, PrioritySchedule, Schedule
from bow.schedule.profiler import BoundStep, Profile
from bow.schedule.profiler.measuring import ScheduledStep
from bow.schedule.scheduler import CoRunScheduler, ListScheduler, OperatorScheduler, Start, critical_path
from bow.schedule.simulator import simulate_operators
from bow.timing import time_in_turns

IN_ORDER, BY_PRIORITY, FIRST_COME, AT_ONCE = "in order", "by priority", "first come", "small at once"

Decisions = Callable[[], OperatorScheduler]


class Chains(nn.Module):
    """Chains of additions of one number to another that do not depend on each other."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self._length = length

    def forward(self, beginnings: Tensor) -> Tensor:
        """The ends of the chains, one number for each of the beginnings `[chains]`."""
        first, *_ = values = beginnings.unbind()
        for _ in range(self._length):
            values = tuple(value + first for value in values)
        ends: Tensor = torch.stack(values) * self.scale
        return ends


def chains(operators: int, width: int) -> BoundStep:
    """A step of some chains."""
    model = Chains(max(1, operators // width))
    return BoundStep.of(model, (torch.zeros(width), torch.zeros(width)), nn.functional.mse_loss)


def schedules(subject: BoundStep) -> dict[str, Schedule]:
    """One executor that is told the order, and that finds one itself."""
    dependencies, count = subject.dependencies, subject.num_operators
    levels = tuple(int(level) for level in critical_path(dependencies, [1] * count).levels)
    return {
        IN_ORDER: Schedule.sequential(count),
        BY_PRIORITY: PrioritySchedule((1,), priority=levels),
        FIRST_COME: FirstComeSchedule((1,)),
        AT_ONCE: PrioritySchedule((1,), priority=levels, small=tuple(range(count))),
    }


def measure_cost(operators: int, width: int, turns: int, stint_s: float) -> dict[str, Any]:
    """Nanoseconds for each operator: all of it in order, and what deciding adds, paired by turn."""
    subject = chains(operators, width)
    contestants = {name: ScheduledStep(subject, schedule) for name, schedule in schedules(subject).items()}
    # The calling thread is the executor, so that its processor time leaves out what other programs do meanwhile.
    seconds = time_in_turns(contestants, turns=turns, window_s=stint_s, clock=time.thread_time)
    added = {name: _added(own, seconds[IN_ORDER]) for name, own in seconds.items() if name != IN_ORDER}
    each = 1e9 / subject.num_operators
    return {
        "operators": subject.num_operators,
        "ready_at_once": width,
        "in_order_ns": quartiles(seconds[IN_ORDER], 1, scale=each),
        "added_ns": {name: quartiles(own, 1, scale=each) for name, own in added.items()},
    }


def decisions_per_s(subject: BoundStep, profile: Profile, cores: int, repeats: int) -> dict[str, float]:
    """By scheduler in Python: operators that it gives out in a second, when it has nothing to wait for."""
    dependencies, curves = subject.dependencies, profile.curves()
    kinds = [operator.kind for operator in operators_of(subject.graph)]
    levels = critical_path(dependencies, profile.nanoseconds(1)).levels
    schedulers: Mapping[str, Decisions] = {
        "first come": lambda: ListScheduler(dependencies, cores),
        "critical path": lambda: ListScheduler(dependencies, cores, levels),
        "strategy 3": lambda: CoRunScheduler(dependencies, curves, kinds, cores, strategy=3),
    }
    return {name: round(_rate(make(), curves, repeats)) for name, make in schedulers.items()}


def _added(seconds: Sequence[float], base: Sequence[float]) -> list[float]:
    return [own - other for own, other in zip(seconds, base, strict=True)]


def _rate(scheduler: OperatorScheduler, curves: Sequence[Mapping[int, int]], repeats: int) -> float:
    """Operators a second: a simulated step is asked for again, event by event."""
    ends = _ends(scheduler, curves)
    began = time.perf_counter()
    for _ in range(repeats):
        scheduler.start(0)
        for moment, operator in ends:
            scheduler.finished(operator, moment)
    return repeats * len(ends) / (time.perf_counter() - began)


def _ends(scheduler: OperatorScheduler, curves: Sequence[Mapping[int, int]]) -> list[tuple[int, int]]:
    """When operators end in simulated time: (nanoseconds, operator), as the scheduler hears of it."""
    heard = Hearing(scheduler)

    def duration(start: Start) -> int:
        return curves[start.operator].get(start.threads, curves[start.operator][1])

    simulate_operators(heard, duration)
    return heard.ends


class Hearing:
    """A scheduler, and what it has heard."""

    def __init__(self, scheduler: OperatorScheduler) -> None:
        self._scheduler = scheduler
        self.ends: list[tuple[int, int]] = []

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""
        return self._scheduler.done

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step."""
        return self._scheduler.start(now_ns)

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """Hear of an end, and remember it."""
        self.ends.append((now_ns, operator))
        return self._scheduler.finished(operator, now_ns)
