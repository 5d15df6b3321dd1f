"""With how many threads an operator runs, from the times that a cost model predicts, and where they are."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from bow.errors import ScheduleError

Times: TypeAlias = Mapping[int, int]
"""Of one operator, by number of threads: nanoseconds."""


def candidates(times: Times, count: int = 3) -> tuple[int, ...]:
    """The numbers of threads with which an operator is fastest, the best first; of equal times the fewest threads.

    References:
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D, strategy 3.
    """
    return tuple(sorted(times, key=lambda threads: (times[threads], threads))[:count])


def best_threads(times: Times) -> int:
    """The number of threads with which an operator is fastest, which strategy 1 gives it."""
    return candidates(times, count=1)[0]


def threads_by_kind(times: Sequence[Times], kinds: Sequence[str]) -> dict[str, int]:
    """One number of threads for each type of operator: the best one of its most time-consuming instance.

    Instances are compared by their least times; of equal ones the first counts. All then use the same number, and the
    teams of threads stay as they are.
    """
    largest: dict[str, Times] = {}
    for kind, own in zip(kinds, times, strict=True):
        if kind not in largest or min(own.values()) > min(largest[kind].values()):
            largest[kind] = own
    return {kind: best_threads(own) for kind, own in largest.items()}


class CacheTimes:
    """Times of operators on a machine where cores share caches.

    With as many threads, an operator can be faster where they share caches, since they use each other's data, or where
    they do not, since each has more room.

    Args:
        together: by operator: nanoseconds where threads share caches as far as they can.
        separate: likewise, where no two share one; a number of threads may stand in one of the two alone.
        caches: by core: the cache that it has or shares.

    References:
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, section III-C.
    """

    def __init__(self, together: Sequence[Times], separate: Sequence[Times], caches: Sequence[int]) -> None:
        if len(together) != len(separate):
            raise ScheduleError(
                f"{len(separate)} separate times for {len(together)} operators; give every operator both"
            )
        self._together, self._separate = together, separate
        self.caches = tuple(caches)

    @property
    def least(self) -> list[dict[int, int]]:
        """By operator, by number of threads: nanoseconds where it is faster."""
        return [
            {threads: min(own[threads] for own in both if threads in own) for threads in sorted({*both[0], *both[1]})}
            for both in zip(self._together, self._separate, strict=True)
        ]

    def check(self, cores: int) -> None:
        """Refuse a machine with another number of cores."""
        if len(self.caches) != cores:
            raise ScheduleError(f"{len(self.caches)} caches for {cores} cores; name the cache of every core")

    def is_better_separate(self, operator: int, threads: int) -> bool:
        """Whether an operator is faster where no two threads share a cache, or known there alone."""
        together = self._together[operator].get(threads)
        return together is None or self._separate[operator].get(threads, together + 1) <= together

    def ns(self, operator: int, cores: Sequence[int]) -> int:
        """How long an operator takes on these cores, one thread on each: where some share caches, as if all did."""
        are_separate = len({self.caches[core] for core in cores}) == len(cores)
        first, second = (self._separate, self._together) if are_separate else (self._together, self._separate)
        threads = len(cores)
        return first[operator][threads] if threads in first[operator] else second[operator][threads]
