"""Schedules: the assignment of operators to executors, by fixed order, by priority, or first come, first served."""

import dataclasses
import graphlib
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from bow.errors import ScheduleError
from bow.files import JsonFormat, whole_numbers

FORMAT = JsonFormat(
    "bow schedule",
    version=4,
    subject="the schedule",
    writer="bow schedule compare or Schedule.to_json",
    remedy="make it again",
    refusal=ScheduleError,
)


@dataclass(frozen=True)
class Schedule(ABC):
    """A schedule of the operators of a step on several executors.

    There are three kinds: an `OrderedSchedule` fixes beforehand which executor runs what; with a `PrioritySchedule` or
    a `FirstComeSchedule` executors take operators as these become ready.

    Raises:
        ScheduleError: it is of none of these kinds.

    Example:
        >>> OrderedSchedule(threads=(1, 1), order=((0, 2), (1,))).check([(), (), (0, 1)])
        >>> Schedule.from_json(FirstComeSchedule((2, 2)).to_json())
        FirstComeSchedule(threads=(2, 2), stay=False, small=())

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, sections 4 to 6.
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D.
    """

    threads: tuple[int, ...]
    """By executor: number of threads of its operators."""

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        if cls is Schedule:
            names = ", ".join(kind.__name__ for kind in _KINDS.values())
            raise ScheduleError(f"Schedule is abstract; use one of bow.schedule: {names}")
        return super().__new__(cls)

    @staticmethod
    def sequential(operators: int, threads: int = 1) -> "OrderedSchedule":
        """Return the schedule that runs all operators in the order of their numbers, on one executor."""
        return OrderedSchedule(threads=(threads,), order=(tuple(range(operators)),))

    def check(self, dependencies: Sequence[Collection[int]]) -> None:
        """Validate the schedule against a step's dependencies.

        Args:
            dependencies: by operator: the operators that must have run before it.

        Raises:
            ScheduleError: the schedule cannot be executed; reports the first problem found.
        """
        self.check_executors()
        for index, before in enumerate(dependencies):
            for other in before:
                if not 0 <= other < len(dependencies):
                    raise ScheduleError(
                        f"operator {index} depends on operator {other}, but there are only {len(dependencies)} "
                        "operators"
                    )
        self._check_operators(len(dependencies))
        cycle = _find_cycle(self._waits_for(dependencies))
        if cycle:
            raise ScheduleError(
                f"the schedule deadlocks: operator {_chain(cycle)}; "
                "in every executor's order, place operators after their dependencies"
            )

    def check_executors(self) -> None:
        """Raise `ScheduleError` for the first problem that does not depend on the operators."""
        if not self.threads:
            raise ScheduleError("a schedule needs at least 1 executor, got threads=(); give one number per executor")
        for executor, threads in enumerate(self.threads):
            if threads < 1:
                raise ScheduleError(f"threads must be at least 1, got {threads} for executor {executor}")

    def to_json(self) -> str:
        """Serialise the schedule, for `from_json`."""
        (kind,) = (name for name, kind in _KINDS.items() if type(self) is kind)
        return FORMAT.dumps({"kind": kind, **dataclasses.asdict(self)})

    @staticmethod
    def from_json(text: str) -> "Schedule":
        """Restore the schedule that `to_json` serialised.

        Raises:
            ScheduleError: the text is damaged, or of another version.
        """
        return FORMAT.loads(text, _read)

    @abstractmethod
    def _check_operators(self, num_operators: int) -> None:
        """Validate against the number of operators."""

    def _waits_for(self, dependencies: Sequence[Collection[int]]) -> list[set[int]]:
        """By operator: those that must have run before it."""
        return [set(before) for before in dependencies]


@dataclass(frozen=True)
class OrderedSchedule(Schedule):
    """Every executor runs its operators in a fixed order.

    Args:
        threads: by executor: number of threads of its operators.
        order: by executor: its operators, in order. An operator listed by several executors runs on the first of
            them, with the threads of all, once it is next in all their orders.
        after: (operator, other): the operator starts after the other has finished, even if it reads nothing of it.
            Keeps operators apart that interfere with each other.

    Example:
        >>> OrderedSchedule(threads=(1, 1), order=((0, 2), (1, 2))).on_executors()  # operator 2 has both executors
        ([[0, 2], [1]], {2: [1]})
    """

    order: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, int], ...] = ()

    def on_executors(self) -> tuple[list[list[int]], dict[int, list[int]]]:
        """Return the operators of each executor, each once, and by operator those on others that it waits for."""
        # In addition to its dependencies: its predecessors in executors' orders, and those it comes `after`.
        own: list[list[int]] = []
        home: dict[int, int] = {}
        for executor, listed in enumerate(self.order):
            own.append([index for index in listed if home.setdefault(index, executor) == executor])
        behind = [pair for listed in self.order for pair in itertools.pairwise(listed)]
        waits: dict[int, list[int]] = {}
        for earlier, later in dict.fromkeys([*behind, *((other, operator) for operator, other in self.after)]):
            if home[earlier] != home[later]:
                waits.setdefault(later, []).append(earlier)
        return own, waits

    def executors_of(self, operators: int) -> list[tuple[int, ...]]:
        """By operator: its executors, beginning with the one it runs on."""
        found: list[tuple[int, ...]] = [()] * operators
        for executor, listed in enumerate(self.order):
            for index in listed:
                found[index] += (executor,)
        return found

    def check_executors(self) -> None:
        super().check_executors()
        if len(self.order) != len(self.threads):
            raise ScheduleError(
                f"the schedule has an order for {len(self.order)} executors and threads for {len(self.threads)}; "
                "give every executor both"
            )

    def _check_operators(self, num_operators: int) -> None:
        times = Counter(index for listed in self.order for index in listed)
        for index in sorted(times.keys() | set(range(num_operators))):
            if not 0 <= index < num_operators:
                raise ScheduleError(
                    f"the schedule runs operator {index}, and there are {num_operators} (0 to {num_operators - 1}); "
                    "make it for this graph"
                )
            if not times[index]:
                raise ScheduleError(f"operator {index} never runs in the schedule; let an executor run it")
        for executor, listed in enumerate(self.order):
            index, count = Counter(listed).most_common(1)[0] if listed else (0, 1)
            if count > 1:
                raise ScheduleError(f"executor {executor} runs operator {index} {count} times; let it run once")
        for index in itertools.chain.from_iterable(self.after):
            if not 0 <= index < num_operators:
                raise ScheduleError(
                    f"after names operator {index}, and there are {num_operators} (0 to {num_operators - 1}); "
                    "make it for this graph"
                )

    def _waits_for(self, dependencies: Sequence[Collection[int]]) -> list[set[int]]:
        waits_for = super()._waits_for(dependencies)
        for earlier, later in [pair for listed in self.order for pair in itertools.pairwise(listed)]:
            waits_for[later].add(earlier)
        for operator, other in self.after:
            waits_for[operator].add(other)
        return waits_for


@dataclass(frozen=True)
class DynamicSchedule(Schedule):
    """Any free executor takes an operator whose dependencies have run."""

    stay: bool = field(default=False, kw_only=True)
    """Prefer the executor that ran the operator's last-finished dependency, if it is free."""
    small: tuple[int, ...] = field(default=(), kw_only=True)
    """Operators that run immediately on the executor that made them ready."""


@dataclass(frozen=True)
class FirstComeSchedule(DynamicSchedule):
    """Executors take the operator that has been ready for longest."""

    def _check_operators(self, num_operators: int) -> None:
        pass  # nothing to check: executors take any ready operator


@dataclass(frozen=True)
class PrioritySchedule(DynamicSchedule):
    """Executors take the operator of highest priority; with critical-path levels this is Graphi's schedule."""

    priority: tuple[int, ...]

    def _check_operators(self, num_operators: int) -> None:
        if len(self.priority) != num_operators:
            raise ScheduleError(
                f"the schedule has {len(self.priority)} priorities for {num_operators} operators; "
                "give every operator one"
            )


_KINDS: dict[str, type[Schedule]] = {
    "order": OrderedSchedule,
    "priority": PrioritySchedule,
    "first come": FirstComeSchedule,
}


def _read(fields: dict[str, Any]) -> Schedule:
    kind, threads = _KINDS[fields["kind"]], whole_numbers(fields["threads"])
    if kind is OrderedSchedule:
        after = tuple((operator, other) for operator, other in map(whole_numbers, fields["after"]))
        return OrderedSchedule(threads, tuple(map(whole_numbers, fields["order"])), after)
    stay, small = fields["stay"], whole_numbers(fields["small"])
    if not isinstance(stay, bool):
        raise TypeError(f"{stay!r} is neither true nor false")
    if kind is PrioritySchedule:
        return PrioritySchedule(threads, whole_numbers(fields["priority"]), stay=stay, small=small)
    return FirstComeSchedule(threads, stay=stay, small=small)


def _find_cycle(waits_for: Sequence[set[int]]) -> list[int]:
    """Return a dependency cycle, first operator repeated at the end; empty if there is none."""
    sorter = graphlib.TopologicalSorter(dict(enumerate(waits_for)))
    try:
        sorter.prepare()
    except graphlib.CycleError:  # names one of the cycles, which may be any
        stuck = set(range(len(waits_for)))
    else:
        return []
    while ready := sorter.get_ready():
        sorter.done(*ready)
        stuck.difference_update(ready)
    path = [min(stuck)]
    while path.count(path[-1]) == 1:
        path.append(min(waits_for[path[-1]] & stuck))
    return path[path.index(path[-1]) :]


def _chain(cycle: Sequence[int], most: int = 6) -> str:
    shown = [str(index) for index in cycle]
    if len(shown) > most:
        shown[most - 2 : -1] = [f"... ({len(shown) - most + 1} more)"]
    return " waits for ".join(shown)
