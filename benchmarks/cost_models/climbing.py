"""Liu et al.'s cost model: threads are added while that makes an operator faster."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bow.errors import SettingError


@dataclass(frozen=True, order=True)
class Threads:
    """A way to run an operator, one thread to a core: how many, and whether two share a cache.

    References:
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, sections III-B and III-C.
    """

    threads: int
    shared: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise SettingError(f"threads must be at least 1, got {self.threads}")
        if self.shared and self.threads % 2:
            raise SettingError(f"threads must be even where two share a cache, got {self.threads}; leave shared out")

    def __str__(self) -> str:
        counted = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{counted}, two to a cache" if self.shared else counted


def placements(cores: int, caches: bool = True) -> tuple[tuple[Threads, ...], ...]:
    """All of a machine, ascending: those where each thread has a cache of its own, then those where two share one."""
    if cores < 1:
        raise SettingError(f"cores must be at least 1, got {cores}")
    if not caches:
        return (tuple(map(Threads, range(1, cores + 1))),)
    alone = tuple(map(Threads, range(1, (cores + 1) // 2 + 1)))
    sharing = tuple(Threads(threads, shared=True) for threads in range(2, cores + 1, 2))
    return (alone, sharing) if sharing else (alone,)


class HillClimb:
    """Finds the best placement of one operator's threads: asks for placements, is told seconds.

    It begins with one thread and adds `interval` threads at a time, once with one thread to a cache and once with two,
    until time has risen or the last step has reached all cores. Each of the two ends by itself. The last step of
    either is longer by what would be left over, so that the largest number of threads is measured and that at most
    `2 * most_threads / interval` placements are (rounded up). Equal times do not end a climb.

    Args:
        most_threads: cores of the machine.
        interval: by how many threads a step goes; with two threads to a cache rounded up to an even number.
        caches: every two cores share a cache, so both ways are tried; else there is one climb over all cores.

    References:
        Liu et al., 2019, section III-C.
    """

    def __init__(self, most_threads: int, interval: int, caches: bool = True) -> None:
        if not 1 <= interval <= most_threads:
            raise SettingError(f"interval must be at least 1 and at most {most_threads} threads, got {interval}")
        self._slopes = [_Slope(_steps(all_of, interval)) for all_of in placements(most_threads, caches)]
        self._measured: dict[Threads, float] = {}

    @property
    def measured(self) -> Mapping[Threads, float]:
        """Seconds by placement, as far as they were reported."""
        return dict(self._measured)

    @property
    def best(self) -> Threads:
        """The fastest placement so far, of equal ones that with fewer threads."""
        if not self._measured:
            raise SettingError("nothing was measured yet, so no placement is the best; report one first")
        return min(self._measured, key=lambda placement: (self._measured[placement], placement))

    def next_placement(self) -> Threads | None:
        """What to measure now, with as few threads as are left, the same until it is reported; None: it has ended."""
        return min((asked for slope in self._slopes if (asked := slope.asked) is not None), default=None)

    def report(self, placement: Threads, seconds: float) -> None:
        """How long the operator took in the placement that `next_placement` asked for."""
        if placement != self.next_placement():
            raise SettingError(f"the placement that was asked for is {self.next_placement()}, got {placement}")
        if not (math.isfinite(seconds) and seconds >= 0):
            raise SettingError(f"seconds must be finite and at least 0, got {seconds}")
        self._measured[placement] = seconds
        next(slope for slope in self._slopes if slope.asked == placement).report(seconds)


class HillClimbing:
    """The climbs of many operators, side by side.

    One training step measures all operators that still climb in the same placement, one after another, so the number
    of steps is that of the longest climb. Arguments are those of `HillClimb`, `operators` are its keys.
    """

    def __init__(self, operators: Iterable[str], most_threads: int, interval: int, caches: bool = True) -> None:
        self._climbs = {operator: HillClimb(most_threads, interval, caches) for operator in operators}
        self.steps = 0

    def next_placement(self) -> Threads | None:
        """The placement of the next step; None when all climbs have ended."""
        asked = (climb.next_placement() for climb in self._climbs.values())
        return min((placement for placement in asked if placement is not None), default=None)

    def wanting(self, placement: Threads) -> list[str]:
        """The operators that climb there."""
        return [operator for operator, climb in self._climbs.items() if climb.next_placement() == placement]

    def report(self, placement: Threads, seconds: Mapping[str, float]) -> None:
        """What a step took, by operator."""
        wanting = self.wanting(placement)
        if not wanting:
            raise SettingError(f"the placement that was asked for is {self.next_placement()}, got {placement}")
        if missing := [operator for operator in wanting if operator not in seconds]:
            raise SettingError(f"no time of {missing[0]!r} with {placement}; report all that `wanting` names")
        for operator in wanting:
            self._climbs[operator].report(placement, seconds[operator])
        self.steps += 1

    def best(self, operator: str) -> Threads:
        """The best placement of an operator so far."""
        if operator not in self._climbs:
            raise SettingError(f"{operator!r} was never measured; name it among the operators")
        return self._climbs[operator].best


class _Slope:
    """One climb through placements of one kind."""

    def __init__(self, steps: tuple[Threads, ...]) -> None:
        self._steps = list(steps)
        self._last_s = math.inf

    @property
    def asked(self) -> Threads | None:
        return self._steps[0] if self._steps else None

    def report(self, seconds: float) -> None:
        del self._steps[: len(self._steps) if seconds > self._last_s else 1]
        self._last_s = seconds


def _steps(all_of: tuple[Threads, ...], interval: int) -> tuple[Threads, ...]:
    """Placements that lie an interval apart, the last one moved to the end."""
    taken = all_of[:: -(-interval // 2) if all_of[0].shared else interval]
    return taken if len(taken) == 1 else (*taken[:-1], all_of[-1])
