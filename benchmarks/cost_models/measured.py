"""Cost models from measurements: placements that stand for all, what a model tells, straight lines between times."""

import bisect
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.cost_models.climbing import Threads, placements
from bow.errors import SettingError


def cases(cores: int, caches: bool = True) -> tuple[Threads, ...]:
    """All cases of a machine: 68 for 68 cores of which every two share a cache."""
    return tuple(case for lane in placements(cores, caches) for case in lane)


def evenly(chosen_from: Sequence[Sequence[Threads]], count: int) -> tuple[Threads, ...]:
    """Cases that stand for all: equally many from every lane, in the middle of equal parts of it.

    What does not divide goes to the last lanes, which reach further.

    Example:
        >>> [str(case) for case in evenly(placements(68), 3)]
        ['18 threads', '18 threads, two to a cache', '52 threads, two to a cache']
    """
    each, rest = divmod(count, len(chosen_from))
    shares = [each + (index >= len(chosen_from) - rest) for index in range(len(chosen_from))]
    if count < 1 or any(share > len(lane) for share, lane in zip(shares, chosen_from, strict=True)):
        raise SettingError(f"count must be at least 1 and fit the {sum(map(len, chosen_from))} cases, got {count}")
    return tuple(
        lane[(2 * turn + 1) * len(lane) // (2 * share)]
        for share, lane in zip(shares, chosen_from, strict=True)
        for turn in range(share)
    )


class CostModel(Protocol):
    """Predicts how long operators take."""

    def time_s(self, operator: str, case: Threads) -> float:
        """Seconds that an operator takes in a case."""
        ...


def candidates(model: CostModel, operator: str, cases: Iterable[Threads], count: int = 3) -> list[Threads]:
    """The cases in which an operator takes the least time, in ascending order of time; of equal ones fewer threads.

    Example:
        >>> class Halving:
        ...     def time_s(self, operator: str, case: Threads) -> float:
        ...         return 1 / min(case.threads, 4)
        >>> [case.threads for case in candidates(Halving(), "aten.mm.default", map(Threads, range(1, 9)))]
        [4, 5, 6]

    References:
        Liu et al., 2019, section III-D, strategy 3.
    """
    if count < 1:
        raise SettingError(f"count must be at least 1, got {count}")
    return sorted(cases, key=lambda case: (model.time_s(operator, case), case))[:count]


def accuracy(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """How close predictions are: `1 - mean(|(y^ - y) / y|)`, which is below 0 where they are off by more than y.

    Example:
        >>> round(accuracy([1.0, 3.0], [1.0, 2.0]), 6)
        0.75

    References:
        Liu et al., 2019, section III-B.
    """
    _check(predicted, actual)
    if not min(actual) > 0:
        raise SettingError(f"actual values must be above 0, got {min(actual)}; leave out what took no time")
    return 1 - math.fsum(abs(p - y) / y for p, y in zip(predicted, actual, strict=True)) / len(actual)


def r_squared(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """The coefficient of determination: `1 - sum((y^ - y)^2) / sum((y - mean(y))^2)`.

    Where all actual values are the same, 1 for exact predictions, else 0.

    Example:
        >>> r_squared([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
        0.5
    """
    _check(predicted, actual)
    mean = math.fsum(actual) / len(actual)
    missed = math.fsum((p - y) ** 2 for p, y in zip(predicted, actual, strict=True))
    varied = math.fsum((y - mean) ** 2 for y in actual)
    return 1 - missed / varied if varied else float(missed == 0)


def _check(predicted: Sequence[float], actual: Sequence[float]) -> None:
    if len(predicted) != len(actual) or not actual:
        raise SettingError(f"{len(predicted)} predictions for {len(actual)} values; give one for each, at least 1")


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
