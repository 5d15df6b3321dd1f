"""Which executor runs which operators: in an order, by priority, or as they become ready."""

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bow.errors import ScheduleError

FORMAT = "bow schedule"
VERSION = 3


@dataclass(frozen=True)
class Schedule:
    """How the operators of a step are run by several executors at once.

    There is either an order, or priorities, or neither: then it is first come, first served.

    Attributes:
        threads: by executor: how many threads its operators use.
        order: by executor: the operators that it runs, one after another. An operator that stands in several
            executors' orders runs on the first of them when it is the next in all, with the threads of all.
        priority: by operator: any executor that is free takes the one of highest priority among those whose
            dependencies have run.
        first_come: any executor that is free takes the operator that has been ready for longest.
        stay: without an order: an operator goes to the executor that ran the last of those that it depends on, if that
            executor is free.
        small: without an order: operators that run at once on the executor where they have become ready.
        after: with an order: (operator, other): it starts when the other is over, though it may read nothing of it. So
            operators stay apart that disturb each other.

    Example:
        >>> Schedule(threads=(1, 1), order=((0, 2), (1,))).check([(), (), (0, 1)])
        >>> Schedule(threads=(1, 1), order=((0, 2), (1, 2))).on_executors()  # operator 2 has both executors
        ([[0, 2], [1]], {2: [1]})

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, sections 4 to 6.
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D.
    """

    threads: tuple[int, ...]
    order: tuple[tuple[int, ...], ...] | None = None
    priority: tuple[int, ...] | None = None
    first_come: bool = False
    stay: bool = False
    small: tuple[int, ...] = ()
    after: tuple[tuple[int, int], ...] = ()

    @classmethod
    def sequential(cls, operators: int, threads: int = 1) -> "Schedule":
        """All operators in the order of their numbers, on one executor."""
        return cls(threads=(threads,), order=(tuple(range(operators)),))

    def on_executors(self) -> tuple[list[list[int]], dict[int, list[int]]]:
        """The order with every operator on one executor only.

        Returns:
            By executor, the operators that it runs; and for operators that have several executors, come behind such
            operators, or come `after` others, which ones on other executors they wait for on that account.
        """
        own: list[list[int]] = []
        home: dict[int, int] = {}
        for executor, lane in enumerate(self.order or ()):
            own.append([index for index in lane if home.setdefault(index, executor) == executor])
        behind = [pair for lane in self.order or () for pair in itertools.pairwise(lane)]
        waits: dict[int, list[int]] = {}
        for earlier, later in dict.fromkeys([*behind, *((other, operator) for operator, other in self.after)]):
            if home[earlier] != home[later]:
                waits.setdefault(later, []).append(earlier)
        return own, waits

    def executors_of(self, operators: int) -> list[tuple[int, ...]]:
        """By operator: the executors that it has, the one that it runs on first; none where there is no order."""
        found: list[tuple[int, ...]] = [()] * operators
        for executor, lane in enumerate(self.order or ()):
            for index in lane:
                found[index] += (executor,)
        return found

    def check(self, dependencies: Sequence[Collection[int]]) -> None:
        """Refuse a schedule that cannot be carried out.

        Args:
            dependencies: by operator: the operators that must have run before it.

        Raises:
            ScheduleError: with the first thing that is wrong.
        """
        self.check_executors()
        _check_dependencies(dependencies)
        if self.order is not None:
            self._check_order(len(dependencies))
        elif self.priority is not None and len(self.priority) != len(dependencies):
            raise ScheduleError(
                f"the schedule has {len(self.priority)} priorities for {len(dependencies)} operators; "
                "give every operator one"
            )
        waits_for = [*map(set, dependencies)]
        for operator, other in self.after:
            waits_for[operator].add(other)
        circle = _circle(waits_for, self.order or ())
        if circle:
            raise ScheduleError(
                f"the schedule never ends: operator {_chain(circle)}; "
                "let every executor run operators behind those that they depend on"
            )

    def check_executors(self) -> None:
        """Refuse a schedule that could not be carried out whatever the operators are.

        Raises:
            ScheduleError: with the first thing that is wrong.
        """
        if not self.threads:
            raise ScheduleError("a schedule needs at least 1 executor, got threads=(); give one number per executor")
        for executor, threads in enumerate(self.threads):
            if threads < 1:
                raise ScheduleError(f"threads must be at least 1, got {threads} for executor {executor}")
        given = [self.order is not None, self.priority is not None, self.first_come].count(True)
        if given != 1:
            count = {0: "none of them", 2: "two of them", 3: "all of them"}[given]
            raise ScheduleError(
                f"a schedule has either an order, or priorities, or first_come=True, got {count}; give one"
            )
        if self.order is not None and (self.stay or self.small):
            raise ScheduleError("stay and small choose executors where there is no order; leave them out")
        if self.order is None and self.after:
            raise ScheduleError("after says what operators wait for where there is an order; leave it out")
        if self.order is not None and len(self.order) != len(self.threads):
            raise ScheduleError(
                f"the schedule has an order for {len(self.order)} executors and threads for {len(self.threads)}; "
                "give every executor both"
            )

    def to_json(self) -> str:
        """The schedule as JSON, with a version."""
        return json.dumps({"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Schedule":
        """The schedule that `to_json` wrote.

        Raises:
            ScheduleError: the text is damaged, or of another version.
        """
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ScheduleError(f"the schedule is not JSON ({error}); make it again") from error
        if not isinstance(read, dict) or read.get("format") != FORMAT:
            raise ScheduleError(
                f'the text is not a "{FORMAT}"; give one that bow schedule compare or Schedule.to_json wrote'
            )
        if read.get("version") != VERSION:
            raise ScheduleError(
                f"the schedule has version {read.get('version')}, this bow reads {VERSION}; make it again"
            )
        try:
            order, priority = read["order"], read["priority"]
            return cls(
                threads=_whole(read["threads"]),
                order=None if order is None else tuple(map(_whole, order)),
                priority=None if priority is None else _whole(priority),
                first_come=_truth(read["first_come"]),
                stay=_truth(read["stay"]),
                small=_whole(read["small"]),
                after=tuple((operator, other) for operator, other in map(_whole, read["after"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ScheduleError(f"the schedule is damaged ({type(error).__name__}: {error}); make it again") from error

    def _check_order(self, operators: int) -> None:
        assert self.order is not None
        times = Counter(index for lane in self.order for index in lane)
        for index in sorted(times.keys() | set(range(operators))):
            if not 0 <= index < operators:
                raise ScheduleError(
                    f"the schedule runs operator {index}, and there are {operators} (0 to {operators - 1}); "
                    "make it for this graph"
                )
            if not times[index]:
                raise ScheduleError(f"operator {index} never runs in the schedule; let an executor run it")
        for executor, lane in enumerate(self.order):
            index, count = Counter(lane).most_common(1)[0] if lane else (0, 1)
            if count > 1:
                raise ScheduleError(f"executor {executor} runs operator {index} {count} times; let it run once")
        for index in itertools.chain.from_iterable(self.after):
            if not 0 <= index < operators:
                raise ScheduleError(
                    f"after names operator {index}, and there are {operators} (0 to {operators - 1}); "
                    "make it for this graph"
                )


def _check_dependencies(dependencies: Sequence[Collection[int]]) -> None:
    for index, before in enumerate(dependencies):
        for other in before:
            if not 0 <= other < len(dependencies):
                raise ScheduleError(
                    f"operator {index} depends on operator {other}, and there are {len(dependencies)}; "
                    "correct the dependencies"
                )


def _circle(waits_for: list[set[int]], order: Sequence[Sequence[int]]) -> list[int]:
    """Operators each of which waits for the next, the first being the last too; empty where there are none."""
    waits_for = [set(before) for before in waits_for]
    for lane in order:
        for earlier, later in itertools.pairwise(lane):
            waits_for[later].add(earlier)
    stuck = _stuck(waits_for)
    if not stuck:
        return []
    path = [min(stuck)]
    while path.count(path[-1]) == 1:
        path.append(min(waits_for[path[-1]] & stuck))
    return path[path.index(path[-1]) :]


def _chain(circle: Sequence[int], most: int = 6) -> str:
    shown = [str(index) for index in circle]
    if len(shown) > most:
        shown[most - 2 : -1] = [f"... ({len(shown) - most + 1} more)"]
    return " waits for ".join(shown)


def _stuck(waits_for: Sequence[Collection[int]]) -> set[int]:
    """The operators that never get their turn."""
    left = {index: len(before) for index, before in enumerate(waits_for)}
    followers: dict[int, list[int]] = {}
    for index, before in enumerate(waits_for):
        for earlier in before:
            followers.setdefault(earlier, []).append(index)
    ready = [index for index, count in left.items() if not count]
    while ready:
        index = ready.pop()
        del left[index]
        for follower in followers.get(index, ()):
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    return set(left)


def _truth(value: Any) -> bool:
    """True or false as it was written."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _whole(numbers: Iterable[Any]) -> tuple[int, ...]:
    """Whole numbers as they were written."""
    read = tuple(numbers)
    for number in read:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{number!r} is not a whole number")
    return read
