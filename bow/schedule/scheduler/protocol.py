"""The operator-scheduler protocol, recorded decisions, dependency analysis, and simulation of a scheduler."""

import dataclasses
import graphlib
import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bow.errors import ScheduleError, SettingError
from bow.schedule.timeline import Span, Timeline


@dataclass(frozen=True)
class CriticalPath:
    """Critical path of a step on any number of executors (Tang et al., 2018, section 4.3)."""

    levels: tuple[float, ...]  # by operator: longest time from its start to the end of the step
    path: tuple[int, ...]  # operators on the critical path, in execution order
    total: float  # time of all operators

    @property
    def length(self) -> float:
        return self.levels[self.path[0]] if self.path else 0

    @property
    def parallelism(self) -> float:
        """Mean number of running operators if the step takes its minimum time."""
        return self.total / self.length if self.length else 1.0


def critical_path(dependencies: Sequence[Collection[int]], costs: Sequence[float]) -> CriticalPath:
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
    while ahead:  # ties: the operator captured first
        path.append(max(ahead, key=lambda index: (levels[index], -index)))
        ahead = following[path[-1]]
    return CriticalPath(tuple(levels), tuple(path), sum(costs))


def followers(dependencies: Sequence[Collection[int]]) -> list[list[int]]:
    """By operator: the operators that depend on it, ascending."""
    following: list[list[int]] = [[] for _ in dependencies]
    for index, before in enumerate(dependencies):
        for earlier in set(before):
            following[earlier].append(index)
    return following


def topological(dependencies: Sequence[Collection[int]]) -> list[int]:
    try:
        return list(graphlib.TopologicalSorter(dict(enumerate(dependencies))).static_order())
    except graphlib.CycleError as error:
        raise ScheduleError(
            f"operator {min(error.args[1])} is on a dependency cycle; correct the dependencies"
        ) from error


class ReadyOperators:
    """Tracks which operators of a step are ready."""

    def __init__(self, dependencies: Sequence[Collection[int]]) -> None:
        self._counts = [len(set(before)) for before in dependencies]
        self._following = followers(dependencies)
        self.begin()

    @property
    def done(self) -> bool:
        return self.num_finished == len(self._counts)

    def begin(self) -> list[int]:
        """Begin a step; return the operators without dependencies."""
        self._waiting = list(self._counts)
        self.num_finished = 0
        return [operator for operator, count in enumerate(self._counts) if not count]

    def finish(self, operator: int) -> list[int]:
        """Mark an operator as finished; return those that became ready, ascending."""
        self.num_finished += 1
        ready = []
        for later in self._following[operator]:
            self._waiting[later] -= 1
            if not self._waiting[later]:
                ready.append(later)
        return ready


@dataclass(frozen=True, repr=False)
class Start:
    """A decision to start an operator now."""

    operator: int
    executor: int
    """Executor that runs it. If executors are cores: its lowest core; executors of second hardware threads are numbered
    after all cores.
    """
    threads: int = 1
    cores: tuple[int, ...] = ()  # logical cores it holds, ascending; empty if executors have their own
    sibling: bool = False  # runs on the second hardware thread of its core, alongside the holder of the core

    def __repr__(self) -> str:
        shown = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return f"Start({', '.join(f'{field.name}={value!r}' for field, value in shown if value != field.default)})"


class OperatorScheduler(Protocol):
    """Decides which operators start when others finish; runtime, simulator and tests drive the same object."""

    @property
    def done(self) -> bool:
        """Whether every operator has finished."""

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step; return the operators to start."""

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        """Report that an operator has finished; return the operators to start now."""


class DecisionRecorder:
    """Forwards a scheduler's decisions and records them."""

    def __init__(self, scheduler: OperatorScheduler) -> None:
        self._scheduler = scheduler
        self._decisions: list[Start] = []

    @property
    def decisions(self) -> tuple[Start, ...]:
        """The decisions of the current step, in order."""
        return tuple(self._decisions)

    @property
    def done(self) -> bool:
        return self._scheduler.done

    def start(self, now_ns: int = 0) -> list[Start]:
        """Begin a step and clear the record."""
        self._decisions = self._scheduler.start(now_ns)
        return list(self._decisions)

    def finished(self, operator: int, now_ns: int = 0) -> list[Start]:
        starts = self._scheduler.finished(operator, now_ns)
        self._decisions.extend(starts)
        return starts


def held_by_core(decisions: Iterable[Start], cores: int) -> tuple[tuple[int, ...], ...]:
    """Return the operators that hold each core (or executor), in order: the `order` of a schedule."""
    # With the times the decisions were based on, no operator starts later than decided if it starts once it is next on
    # all of its cores and its dependencies have finished.
    decisions = tuple(decisions)
    held: list[list[int]] = [[] for _ in range(2 * cores if any(start.sibling for start in decisions) else cores)]
    for start in decisions:
        for core in start.cores or (start.executor,):
            if core >= cores:
                raise ScheduleError(
                    f"operator {start.operator} uses core {core}, and the last one is {cores - 1}; "
                    f"schedule for {cores} cores"
                )
            held[core + cores if start.sibling else core].append(start.operator)
    return tuple(map(tuple, held))


def simulate_operators(
    scheduler: OperatorScheduler, duration_ns: Callable[[Start], int], names: Sequence[str] | None = None
) -> Timeline:
    """Simulate a scheduler's decisions; of simultaneous ends the lowest operator is first (Tang et al., 2018, 4.3)."""
    ends: list[tuple[int, int, int, int, Start]] = []  # end, operator, serial number, start, how it runs
    serial = itertools.count()

    def give(starts: Iterable[Start], now_ns: int) -> None:
        for start in starts:
            if (took_ns := duration_ns(start)) < 0:
                raise SettingError(f"duration_ns must be at least 0, got {took_ns} for {start}")
            heapq.heappush(ends, (now_ns + took_ns, start.operator, next(serial), now_ns, start))

    spans: list[Span] = []
    give(scheduler.start(0), 0)
    while ends:
        now_ns, operator, _, began_ns, start = heapq.heappop(ends)
        name = str(operator) if names is None else names[operator]
        details = {"operator": operator, "threads": start.threads}
        spans += [Span(name, place, began_ns, now_ns, details=details) for place in places_of(start)]
        give(scheduler.finished(operator, now_ns), now_ns)
    assert scheduler.done
    return Timeline(sorted(spans, key=lambda span: span.start_ns))  # stable: of equal starts the one that ends first


def places_of(start: Start) -> list[str]:
    if not start.cores:
        return [f"executor {start.executor}"]
    return [f"core {core} thread 1" if start.sibling else f"core {core}" for core in start.cores]
