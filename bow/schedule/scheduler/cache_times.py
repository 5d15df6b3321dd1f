"""What operators take by where their threads are: two to a cache, or one."""

from collections.abc import Sequence

from bow.errors import ScheduleError
from bow.schedule.scheduler.threads_of import Times


class CacheTimes:
    """Times of operators on a machine where cores share caches.

    With as many threads, an operator can be faster where they share caches, since they use each other's data, or where
    they do not, since each has more room.

    Args:
        together: by operator: nanoseconds where threads share caches as far as they can.
        apart: likewise, where no two share one; a number of threads may stand in one of the two alone.
        caches: by core: the cache that it has or shares.

    Raises:
        ScheduleError: the two are not times of the same operators.

    Example:
        >>> times = CacheTimes([{1: 9, 2: 5}], [{1: 9, 2: 6}], caches=(0, 0, 1, 1))
        >>> times.least, times.ns(0, (0, 1)), times.ns(0, (0, 2)), times.is_better_apart(0, 2)
        ([{1: 9, 2: 5}], 5, 6, False)

    References:
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, section III-C.
    """

    def __init__(self, together: Sequence[Times], apart: Sequence[Times], caches: Sequence[int]) -> None:
        if len(together) != len(apart):
            raise ScheduleError(f"{len(apart)} times apart for {len(together)} operators; give every operator both")
        self._together, self._apart = together, apart
        self.caches = tuple(caches)

    @property
    def least(self) -> list[dict[int, int]]:
        """By operator, by number of threads: nanoseconds where it is faster."""
        return [
            {threads: min(own[threads] for own in both if threads in own) for threads in sorted({*both[0], *both[1]})}
            for both in zip(self._together, self._apart, strict=True)
        ]

    def check(self, cores: int) -> None:
        """Refuse a machine with another number of cores."""
        if len(self.caches) != cores:
            raise ScheduleError(f"{len(self.caches)} caches for {cores} cores; name the cache of every core")

    def is_better_apart(self, operator: int, threads: int) -> bool:
        """Whether an operator is faster where no two threads share a cache, or known there alone."""
        together = self._together[operator].get(threads)
        return together is None or self._apart[operator].get(threads, together + 1) <= together

    def ns(self, operator: int, cores: Sequence[int]) -> int:
        """How long an operator takes on these cores, one thread on each: where some share caches, as if all did."""
        are_apart = len({self.caches[core] for core in cores}) == len(cores)
        first, second = (self._apart, self._together) if are_apart else (self._together, self._apart)
        threads = len(cores)
        return first[operator][threads] if threads in first[operator] else second[operator][threads]
