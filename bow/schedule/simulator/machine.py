"""Operators under way in simulated time: when each ends, and what slows it down meanwhile."""

import heapq
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

from bow.errors import SettingError


class Start(Protocol):
    """Run an operator, now."""

    @property
    def operator(self) -> int: ...  # noqa: D102

    @property
    def executor(self) -> int: ...  # noqa: D102

    @property
    def threads(self) -> int: ...  # noqa: D102

    @property
    def cores(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def sibling(self) -> bool: ...  # noqa: D102


S = TypeVar("S", bound=Start)


class Run(Generic[S]):
    """An operator that has been started.

    Args:
        start: what was asked for.
        begins_ns: when it begins.
        duration_ns: how long it takes where nothing slows it down.
    """

    def __init__(self, start: S, begins_ns: int, duration_ns: int) -> None:
        self.start = start
        self.begins_ns = begins_ns
        self.ends_ns = begins_ns + duration_ns
        """If nothing changes."""
        self.slowness = Fraction(1)
        """How many times as long everything takes, at present."""
        self.over = False
        self._since_ns = begins_ns
        self._left_ns = Fraction(duration_ns)

    def go_on(self, now_ns: int, slowness: Fraction) -> None:
        """From now on everything takes so many times as long."""
        self._left_ns -= (now_ns - self._since_ns) / self.slowness
        self._since_ns, self.slowness = now_ns, slowness
        self.ends_ns = now_ns + math.ceil(self._left_ns * slowness)


class Machine(Generic[S]):
    """Runs what it is given, and says what ends next.

    Operators that end at the same moment do so in the order of their numbers.

    Args:
        duration_ns: how long an operator takes where nothing slows it down.
        dispatch_ns: how long it takes to give out one, one after another.
        siblings_factor: how many times as long an operator takes while it shares a core.
    """

    def __init__(self, duration_ns: Callable[[S], int], dispatch_ns: int, siblings_factor: float) -> None:
        if dispatch_ns < 0:
            raise SettingError(f"dispatch_ns and polling must be at least 0, got {dispatch_ns} in all")
        if not (math.isfinite(siblings_factor) and siblings_factor >= 1):
            raise SettingError(f"siblings_factor must be at least 1, got {siblings_factor}; 1 slows nothing down")
        self._duration_ns = duration_ns
        self._dispatch_ns = dispatch_ns
        self._dispatcher_free_ns = 0
        self._factor = Fraction(siblings_factor).limit_denominator(1_000_000)  # 1.3 is 13/10: ends are exact
        self._events: list[tuple[int, bool, int, int, Run[S]]] = []  # when, whether it ends, operator, serial number
        self._serial = itertools.count()
        self._holders: dict[tuple[int, bool], Run[S]] = {}  # by core, and whether on its second hardware thread
        self.now_ns = 0

    def give(self, start: S) -> None:
        """Start an operator, as soon as it has been given out."""
        begins_ns = self.now_ns
        if self._dispatch_ns:
            begins_ns = self._dispatcher_free_ns = max(self._dispatcher_free_ns, begins_ns) + self._dispatch_ns
        duration_ns = self._duration_ns(start)
        if duration_ns < 0:
            raise SettingError(f"duration_ns must be at least 0, got {duration_ns} for {start}")
        run = Run(start, begins_ns, duration_ns)
        self._note(begins_ns, False, run)

    def next_end(self) -> Run[S] | None:
        """Let time pass until an operator ends; None: none is under way."""
        while self._events:
            when_ns, is_end, _, _, run = heapq.heappop(self._events)
            if is_end and (run.over or when_ns != run.ends_ns):
                continue  # its speed has changed since this was noted
            self.now_ns = when_ns
            run.over = is_end
            self._occupy(run, begins=not is_end)
            if is_end:
                return run
            self._note(run.ends_ns, True, run)
        return None

    def _note(self, when_ns: int, is_end: bool, run: Run[S]) -> None:
        heapq.heappush(self._events, (when_ns, is_end, run.start.operator, next(self._serial), run))

    def _occupy(self, run: Run[S], begins: bool) -> None:
        """An operator begins or ends: what shares a core with it goes on slower, or faster."""
        start = run.start
        for core in start.cores:
            if begins:
                self._holders[core, start.sibling] = run
            else:
                del self._holders[core, start.sibling]
        found = (self._holders.get((core, not start.sibling)) for core in start.cores)
        others = dict.fromkeys(other for other in found if other is not None)
        for each in [run, *others] if begins else others:
            self._set_speed(each)

    def _set_speed(self, run: Run[S]) -> None:
        """An operator is as slow as the slowest of its threads."""
        shares = any((core, not run.start.sibling) in self._holders for core in run.start.cores)
        slowness = self._factor if shares else Fraction(1)
        if slowness != run.slowness:
            run.go_on(self.now_ns, slowness)
            self._note(run.ends_ns, True, run)
