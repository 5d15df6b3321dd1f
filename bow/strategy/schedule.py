"""Which executor runs which operators, in which order or by which priority."""

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bow.errors import ScheduleError

FORMAT = "bow schedule"
VERSION = 1


@dataclass(frozen=True)
class Schedule:
    """How the operators of a step are run by several executors at once.

    Attributes:
        threads: by executor: how many threads its operators use.
        order: by executor: the operators that it runs, one after another; None where any executor that is free takes
            the operator of highest priority among those whose dependencies have run.
        priority: by operator: higher first; None where there is an order.

    Example:
        >>> Schedule(threads=(1, 1), order=((0, 2), (1,))).check([(), (), (0, 1)])

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, section 4.
    """

    threads: tuple[int, ...]
    order: tuple[tuple[int, ...], ...] | None = None
    priority: tuple[int, ...] | None = None

    @classmethod
    def sequential(cls, operators: int, threads: int = 1) -> "Schedule":
        """All operators in the order of their numbers, on one executor."""
        return cls(threads=(threads,), order=(tuple(range(operators)),))

    def check(self, dependencies: Sequence[Collection[int]]) -> None:
        """Refuse a schedule that cannot be carried out.

        Args:
            dependencies: by operator: the operators that must have run before it.

        Raises:
            ScheduleError: with the first thing that is wrong.
        """
        self._check_executors()
        _check_dependencies(dependencies)
        if self.order is not None:
            self._check_order(len(dependencies))
        elif self.priority is not None and len(self.priority) != len(dependencies):
            raise ScheduleError(
                f"the schedule has {len(self.priority)} priorities for {len(dependencies)} operators; "
                "give every operator one"
            )
        circle = _circle([*map(set, dependencies)], self.order or ())
        if circle:
            raise ScheduleError(
                f"the schedule never ends: operator {_chain(circle)}; "
                "let every executor run operators behind those that they depend on"
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
        except ValueError as error:
            raise ScheduleError(f"the schedule is not JSON ({error}); make it again") from error
        if not isinstance(read, dict) or read.get("format") != FORMAT:
            raise ScheduleError(f'the text is not a "{FORMAT}"; give one that Schedule.to_json wrote')
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
            )
        except (KeyError, TypeError) as error:
            raise ScheduleError(f"the schedule is damaged ({type(error).__name__}: {error}); make it again") from error

    def _check_executors(self) -> None:
        if not self.threads:
            raise ScheduleError("a schedule needs at least 1 executor, got threads=(); give one number per executor")
        for executor, threads in enumerate(self.threads):
            if threads < 1:
                raise ScheduleError(f"threads must be at least 1, got {threads} for executor {executor}")
        if (self.order is None) == (self.priority is None):
            given = "neither" if self.order is None else "both"
            raise ScheduleError(f"a schedule has either an order or priorities, got {given}; give one of them")
        if self.order is not None and len(self.order) != len(self.threads):
            raise ScheduleError(
                f"the schedule has an order for {len(self.order)} executors and threads for {len(self.threads)}; "
                "give every executor both"
            )

    def _check_order(self, operators: int) -> None:
        assert self.order is not None
        times = Counter(index for lane in self.order for index in lane)
        for index in sorted(times.keys() | set(range(operators))):
            if not 0 <= index < operators:
                raise ScheduleError(
                    f"the schedule runs operator {index}, and there are {operators} (0 to {operators - 1}); "
                    "make it for this graph"
                )
            if times[index] != 1:
                how = "never runs" if not times[index] else f"runs {times[index]} times"
                raise ScheduleError(f"operator {index} {how} in the schedule; let one executor run it once")


def _check_dependencies(dependencies: Sequence[Collection[int]]) -> None:
    for index, before in enumerate(dependencies):
        for other in before:
            if not 0 <= other < len(dependencies):
                raise ScheduleError(
                    f"operator {index} depends on operator {other}, and there are {len(dependencies)}; "
                    "correct the dependencies"
                )


def _circle(waits_for: list[set[int]], order: Sequence[Sequence[int]]) -> list[int]:
    """Operators each of which waits for the next, the first being the last too; empty where there are none.

    Args:
        waits_for: by operator: what it depends on.
        order: by executor; an operator also waits for the one in front of it.
    """
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


def _whole(numbers: Iterable[Any]) -> tuple[int, ...]:
    """Whole numbers as they were written.

    Raises:
        TypeError: something else stands among them.
    """
    read = tuple(numbers)
    for number in read:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{number!r} is not a whole number")
    return read
