"""Liu et al.'s hill-climbing cost model, and its accuracy for unmeasured cases (Table V)."""

import bisect
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.costs.evidence import standalone
from benchmarks.costs.machine import Saturation, Threads, Work, cases, placements
from bow.errors import SettingError


class HillClimb:
    """Finds the best placement of one operator's threads: proposes placements and receives their times.

    It starts with one thread and adds `interval` threads per step, once with one thread per cache and once with two,
    until time rises or the last step reaches all cores. Both climbs end independently. The last step of either
    also includes the remainder, so that the largest number of threads is measured, and at most
    `2 * most_threads / interval` placements (rounded up). Equal times do not end a climb.

    Args:
        most_threads: cores of the machine, of which every two share a cache.
        interval: threads per step; rounded up to an even number with two threads per cache.

    References:
        Liu et al., 2019, section III-C.
    """

    def __init__(self, most_threads: int, interval: int) -> None:
        if not 1 <= interval <= most_threads:
            raise SettingError(f"interval must be at least 1 and at most {most_threads} threads, got {interval}")
        self._slopes = [_Slope(_steps(all_of, interval)) for all_of in placements(most_threads)]
        self._measured: dict[Threads, float] = {}

    @property
    def measured(self) -> Mapping[Threads, float]:
        """Reported seconds by placement."""
        return dict(self._measured)

    @property
    def best(self) -> Threads:
        """The fastest placement so far; of ties the one with fewer threads."""
        return min(self._measured, key=lambda placement: (self._measured[placement], placement))

    def next_placement(self) -> Threads | None:
        """Return the next placement to measure, the same until it is reported; None: the climb has ended."""
        return min((asked for slope in self._slopes if (asked := slope.asked) is not None), default=None)

    def report(self, placement: Threads, seconds: float) -> None:
        """Report the time of the placement that `next_placement` returned."""
        self._measured[placement] = seconds
        next(slope for slope in self._slopes if slope.asked == placement).report(seconds)


class _Slope:
    """A climb through placements of one kind."""

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
    """Placements at the given interval; the last one is moved to the end."""
    taken = all_of[:: -(-interval // 2) if all_of[0].shared else interval]
    return taken if len(taken) == 1 else (*taken[:-1], all_of[-1])


def accuracy(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """Accuracy of predictions: `1 - mean(|(y^ - y) / y|)`, negative if the mean relative error exceeds 1.

    Example:
        >>> round(accuracy([1.0, 3.0], [1.0, 2.0]), 6)
        0.75

    References:
        Liu et al., 2019, section III-B.
    """
    return 1 - math.fsum(abs(p - y) / y for p, y in zip(predicted, actual, strict=True)) / len(actual)


def r_squared(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """The coefficient of determination: `1 - sum((y^ - y)^2) / sum((y - mean(y))^2)`.

    If all actual values are equal, 1 for exact predictions, else 0.

    Example:
        >>> r_squared([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
        0.5
    """
    mean = math.fsum(actual) / len(actual)
    missed = math.fsum((p - y) ** 2 for p, y in zip(predicted, actual, strict=True))
    varied = math.fsum((y - mean) ** 2 for y in actual)
    return 1 - missed / varied if varied else float(missed == 0)


@dataclass(frozen=True)
class Curve:
    """Linear interpolation between measurements, separately for cases with and without shared caches.

    Outside the measured range of its lane, a case takes as long as the nearest measured one; the paper does not specify
    this. A climb ends when time has risen, so for a convex curve the last time is a lower bound of all later ones, and
    none of them looks better than the best. Linear extrapolation would follow the rise, but multiplies the noise
    of two measurements by the distance over the interval; and as a climb ends only after a rise, that noise is biased
    upwards: for the operators of ResNet-50 on the simulated machine, with interval 2, extrapolation is 1 point more
    accurate without noise, and 20 points less with times that vary by 3 %.

    Example:
        >>> curve = Curve({Threads(1): 10.0, Threads(4): 4.0})
        >>> [curve.time_s(Threads(threads)) for threads in (1, 2, 3, 4, 9)]
        [10.0, 8.0, 6.0, 4.0, 4.0]

    References:
        Liu et al., 2019, section III-C.
    """

    measured: Mapping[Threads, float]

    def time_s(self, case: Threads) -> float:
        """Return the seconds of a case; the measured value if there is one."""
        lane = self._lanes[case.shared]
        above = bisect.bisect_left(lane, case)
        if above == len(lane) or lane[above] == case or above == 0:
            return self.measured[lane[min(above, len(lane) - 1)]]
        low, high = lane[above - 1], lane[above]
        part = (case.threads - low.threads) / (high.threads - low.threads)
        return self.measured[low] + part * (self.measured[high] - self.measured[low])

    def reaches(self, case: Threads) -> bool:
        """Whether a case was measured or is between two measured ones."""
        lane = self._lanes[case.shared]
        return bool(lane) and lane[0] <= case <= lane[-1]

    @functools.cached_property
    def _lanes(self) -> dict[bool, list[Threads]]:
        ascending = sorted(self.measured)
        return {shared: [case for case in ascending if case.shared == shared] for shared in (False, True)}


Times = Mapping[Threads, float]  # seconds of an operator in every case


@dataclass(frozen=True)
class Variant:
    title: str  # how it differs
    machine: Saturation


@dataclass(frozen=True)
class Climbed:
    """The results of one operator's climb."""

    untested: float | None  # accuracy of all unmeasured cases; None if there are none
    between: float | None  # accuracy of those between two measured ones
    behind: float | None  # accuracy of those after the last measured one
    loss: float  # relative excess time of the best case found over the true optimum, without noise
    measured: int  # number of measured cases
    predicted: tuple[float, ...]  # predicted seconds of the unmeasured cases
    actual: tuple[float, ...]  # their actual seconds


def variants(noise: float, seed: int) -> list[Variant]:
    """The machines: with normal noise, without noise, with three times the noise, and that of Table II."""
    usual = Saturation(noise=noise, seed=seed)
    return [
        Variant("as set", usual),
        Variant("no noise", replace(usual, noise=0.0)),
        Variant("three times the noise", replace(usual, noise=3 * noise)),
        Variant("convolutions with what does not scale in Table II", standalone(usual)),
    ]


def climb_all(works: Mapping[str, Work], variant: Variant, intervals: Sequence[int]) -> dict[str, Any]:
    """Return the mean results of climbing all operators, by interval."""
    machine = variant.machine
    noisy = [times_of(machine, work) for work in works.values()]
    quiet = noisy if not machine.noise else [times_of(replace(machine, noise=0.0), work) for work in works.values()]
    return {
        str(interval): _summary(
            [climb(times, truth, machine.cores, interval) for times, truth in zip(noisy, quiet, strict=True)]
        )
        for interval in intervals
    }


def times_of(machine: Saturation, work: Work) -> dict[Threads, float]:
    """Return the time of an operator in every case of a machine."""
    return {case: machine.time_s(work.flops, work.bytes_moved, work.kind, case) for case in cases(machine.cores)}


def climb(times: Times, truth: Times, cores: int, interval: int) -> Climbed:
    """Climb on one operator's times, and predict all unmeasured cases."""
    walk = HillClimb(cores, interval)
    while (case := walk.next_placement()) is not None:
        walk.report(case, times[case])
    untested = [case for case in times if case not in walk.measured]
    curve = Curve(walk.measured)

    def score(chosen: list[Threads]) -> float | None:
        return accuracy([curve.time_s(case) for case in chosen], [times[case] for case in chosen]) if chosen else None

    return Climbed(
        untested=score(untested),
        between=score([case for case in untested if curve.reaches(case)]),
        behind=score([case for case in untested if not curve.reaches(case)]),
        loss=truth[walk.best] / min(truth.values()) - 1,
        measured=len(walk.measured),
        predicted=tuple(curve.time_s(case) for case in untested),
        actual=tuple(times[case] for case in untested),
    )


def _summary(climbs: Sequence[Climbed]) -> dict[str, Any]:
    predicted = [value for each in climbs for value in each.predicted]
    actual = [value for each in climbs for value in each.actual]
    return {
        "accuracy": _mean([each.untested for each in climbs]),
        "accuracy_between": _mean([each.between for each in climbs]),
        "accuracy_behind": _mean([each.behind for each in climbs]),
        "r_squared": round(r_squared(predicted, actual), 4) if actual else None,
        "loss_mean": _mean([each.loss for each in climbs]),
        "loss_most": round(max(each.loss for each in climbs), 4),
        "measured_mean": _mean([float(each.measured) for each in climbs]),
        "measured_most": max(each.measured for each in climbs),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 4) if known else None
