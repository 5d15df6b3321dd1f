"""Liu et al.'s cost model, threads added while that helps, and how well it knows what it has not measured (Table V)."""

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


Times = Mapping[Threads, float]  # Seconds of an operator in every case


@dataclass(frozen=True)
class Variant:
    """A machine that is climbed on."""

    title: str  # what is special about it
    machine: Saturation  # the machine


@dataclass(frozen=True)
class Climbed:
    """What came of one operator's climb."""

    untested: float | None  # accuracy of all cases that were not measured; None where there is none
    between: float | None  # accuracy of those that lie between two that were
    behind: float | None  # accuracy of those behind the last that was
    loss: float  # how much longer the best case found takes than the best there is, without noise, as a part
    measured: int  # how many cases were
    predicted: tuple[float, ...]  # seconds of the cases that were not measured
    actual: tuple[float, ...]  # what they took


def variants(noise: float, seed: int) -> list[Variant]:
    """The machines: as noisy as is taken for normal, without noise, three times as noisy, and of Table II."""
    usual = Saturation(noise=noise, seed=seed)
    return [
        Variant("as set", usual),
        Variant("no noise", replace(usual, noise=0.0)),
        Variant("three times the noise", replace(usual, noise=3 * noise)),
        Variant("convolutions with what does not scale in Table II", standalone(usual)),
    ]


def climb_all(works: Mapping[str, Work], variant: Variant, intervals: Sequence[int]) -> dict[str, Any]:
    """By interval: what the climbs of all operators come to, on average."""
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
    """What an operator takes in every case of a machine."""
    return {case: machine.time_s(work.flops, work.bytes_moved, work.kind, case) for case in cases(machine.cores)}


def climb(times: Times, truth: Times, cores: int, interval: int) -> Climbed:
    """Climb on one operator's times, and ask for all that was not measured."""
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
