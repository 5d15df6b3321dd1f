"""An operator's time by the number of its threads, from a few measurements."""

import bisect
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from bow.errors import SettingError
from bow.schedule.climbing import Threads


@dataclass(frozen=True)
class Curve:
    """Straight lines between what was measured, for cases with and without shared caches by themselves.

    Outside of what was measured in its lane, a case takes as long as the nearest one that was. The paper is silent
    about that. A climb ends where time has risen, so for a convex curve the last time is a lower bound of those
    behind it, and what lies there never looks better than the best. A line through the last two points follows a rise
    further, but multiplies the noise of two measurements by the distance over the interval, and as a climb ends only
    where time has risen, that noise always points upwards: for the operators of ResNet-50 on the made-up machine, with
    interval 2, such lines are 1 point more accurate without noise, and 20 points less where times vary by 3 %.

    Example:
        >>> curve = Curve({Threads(1): 10.0, Threads(4): 4.0})
        >>> [curve.time_s(Threads(threads)) for threads in (1, 2, 3, 4, 9)]
        [10.0, 8.0, 6.0, 4.0, 4.0]

    References:
        Liu et al., 2019, section III-C.
    """

    measured: Mapping[Threads, float]

    def __post_init__(self) -> None:
        if not self.measured:
            raise SettingError("a curve needs at least 1 measurement, got none; report some first")
        for case, seconds in self.measured.items():
            if not (math.isfinite(seconds) and seconds >= 0):
                raise SettingError(f"a time must be finite and at least 0, got {seconds} for {case}")

    def time_s(self, case: Threads) -> float:
        """Seconds in a case; what was measured, where it was."""
        lane = self._lanes[case.shared]
        if not lane:
            missing = "two threads to a cache" if case.shared else "one thread to a cache"
            raise SettingError(f"no case with {missing} was measured, cannot tell about {case}; measure one")
        above = bisect.bisect_left(lane, case)
        if above == len(lane) or lane[above] == case or above == 0:
            return self.measured[lane[min(above, len(lane) - 1)]]
        low, high = lane[above - 1], lane[above]
        part = (case.threads - low.threads) / (high.threads - low.threads)
        return self.measured[low] + part * (self.measured[high] - self.measured[low])

    def reaches(self, case: Threads) -> bool:
        """Whether a case was measured or lies between two that were."""
        lane = self._lanes[case.shared]
        return bool(lane) and lane[0] <= case <= lane[-1]

    @functools.cached_property
    def _lanes(self) -> dict[bool, list[Threads]]:
        ascending = sorted(self.measured)
        return {shared: [case for case in ascending if case.shared == shared] for shared in (False, True)}
