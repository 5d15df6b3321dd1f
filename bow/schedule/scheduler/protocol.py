"""Operator-scheduler protocol: completions in, starts out; decisions as data; and what dependencies allow."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bow.errors import ScheduleError


@dataclass(frozen=True)
class CriticalPath:
    """What the dependencies of a step allow, with as many executors as there might be.

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.3.
    """

    levels: tuple[float, ...]  # by operator: the longest time from its start to the end of the step
    path: tuple[int, ...]  # the operators that determine the step's least time, in the order in which they run
    total: float  # what all operators take together

    @property
    def length(self) -> float:
        return self.levels[self.path[0]] if self.path else 0

    @property
    def parallelism(self) -> float:
        """How many operators run at once on average where the step takes its least time."""
        return self.total / self.length if self.length else 1.0


def critical_path(dependencies: Sequence[Collection[int]], costs: Sequence[float]) -> CriticalPath:
    """Find the operators on which a step's time depends."""
    if len(costs) != len(dependencies):
        raise ScheduleError(f"{len(costs)} costs for {len(dependencies)} operators; give every operator one")
    wrong = next((index for index, cost in enumerate(costs) if not cost >= 0), None)
    if wrong is not None:
        raise ScheduleError(f"a cost must be at least 0, got {costs[wrong]} for operator {wrong}")
    following = followers(dependencies)
    levels = [0.0] * len(costs)
    for index in reversed(topological(dependencies)):
        levels[index] = costs[index] + max((levels[later] for later in following[index]), default=0)
    path: list[int] = []
    ahead: Collection[int] = range(len(costs))
    while ahead:  # equal levels: the operator that was captured first
        path.append(max(ahead, key=lambda index: (levels[index], -index)))
        ahead = following[path[-1]]
    return CriticalPath(tuple(levels), tuple(path), sum(costs))


def followers(dependencies: Sequence[Collection[int]]) -> list[list[int]]:
    """By operator: those that wait for it, in ascending order."""
    following: list[list[int]] = [[] for _ in dependencies]
    for index, before in enumerate(dependencies):
        for earlier in set(before):
            following[earlier].append(index)
    return following


def topological(dependencies: Sequence[Collection[int]]) -> list[int]:
    """The operators in an order in which each comes behind those that it depends on."""
    following = followers(dependencies)
    waiting = [len(set(before)) for before in dependencies]
    order = [index for index, count in enumerate(waiting) if not count]
    for index in order:
        for later in following[index]:
            waiting[later] -= 1
            if not waiting[later]:
                order.append(later)
    if len(order) < len(dependencies):
        stuck = next(index for index, count in enumerate(waiting) if count)
        raise ScheduleError(f"operator {stuck} waits for itself, by way of others; correct the dependencies")
    return order


class ReadyOperators:
    """Which operators of a step have become ready."""

    def __init__(self, dependencies: Sequence[Collection[int]]) -> None:
        self._counts = [len(set(before)) for before in dependencies]
        self._following = followers(dependencies)
        self.begin()

    @property
    def done(self) -> bool:
        return self.num_finished == len(self._counts)

    def begin(self) -> list[int]:
        """Begin a step: the operators that wait for none."""
        self._waiting = list(self._counts)
        self.num_finished = 0
        return [operator for operator, count in enumerate(self._counts) if not count]

    def finish(self, operator: int) -> list[int]:
        """The operators that waited for this one last, in ascending order."""
        self.num_finished += 1
        ready = []
        for later in self._following[operator]:
            self._waiting[later] -= 1
            if not self._waiting[later]:
                ready.append(later)
        return ready


@dataclass(frozen=True, repr=False)
class Start:
    """Run an operator, now."""

    operator: int
    executor: int
    """Whose thread runs it. Where executors are cores, the lowest of its cores; the executors of second hardware
    threads follow behind those of all cores."""
    threads: int = 1
    cores: tuple[int, ...] = ()  # the logical cores that it holds, ascending; none where executors have their own
    sibling: bool = False  # it runs on the second hardware thread of its core, beside whatever holds the core

    def __repr__(self) -> str:
        shown = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return f"Start({', '.join(f'{field.name}={value!r}' for field, value in shown if value != field.default)})"


class OperatorScheduler(Protocol):
    """Decides, when operators have finished, which ones start.

    A step begins with `start` and is over when `done`. Runtime, simulator and tests drive the same object. Schedulers
    that do not plan with times do not look at the clock.
    """

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step; what can be run at once."""

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """An operator has finished; what can be run now."""


class DecisionRecorder:
    """Passes on what a scheduler decides, and keeps it."""

    def __init__(self, scheduler: OperatorScheduler) -> None:
        self._scheduler = scheduler
        self._decisions: list[Start] = []

    @property
    def decisions(self) -> tuple[Start, ...]:
        """What was started in this step, in that order."""
        return tuple(self._decisions)

    @property
    def done(self) -> bool:
        return self._scheduler.done

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step, and forget the one before."""
        self._decisions = self._scheduler.start(now_ns)
        return list(self._decisions)

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        starts = self._scheduler.finished(operator, now_ns)
        self._decisions.extend(starts)
        return starts


def held_by_core(decisions: Iterable[Start], cores: int) -> tuple[tuple[int, ...], ...]:
    """The operators that hold each core, one after another: the `order` of a schedule.

    An operator that holds several cores stands in the lists of all of them. It can start when it is the next one in all
    and those that it depends on have finished. Carried out like this, with the times that the decisions were made with,
    no operator starts later than it was started then. Of operators without cores, every executor has a list.
    """
    decisions = tuple(decisions)
    held: list[list[int]] = [[] for _ in range(2 * cores if any(start.sibling for start in decisions) else cores)]
    for start in decisions:
        for core in start.cores or (start.executor,):
            if core >= cores:
                raise ScheduleError(f"operator {start.operator} has core {core}, and there are {cores}; count again")
            held[core + cores if start.sibling else core].append(start.operator)
    return tuple(map(tuple, held))
