"""Settings, candidates, trials and results of the tuner."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from bow.observe.text import learners_text
from bow.values import whole

MIN_REPEATS = 2  # repeats before a trial is given up as hopeless


@dataclass(frozen=True)
class EngineSetting:
    """One way of running a training on a device."""

    engine: str  # as named by the caller, such as `graph` or `graph+compiled`
    learners: int = 1  # on the device
    threads: int = 1  # of each learning task

    def __post_init__(self) -> None:
        whole("learners", self.learners)
        whole("threads", self.threads)

    def __str__(self) -> str:
        words = [self.engine, learners_text(self.learners)]
        return ", ".join(words + ([f"{self.threads} threads"] if self.threads > 1 else []))


@dataclass(frozen=True)
class Trial:
    """A setting to measure, and for how long."""

    setting: EngineSetting  # measured after a warm-up
    # total measuring time, without warm-up and setup; a repeat takes at least one round
    seconds: float
    repeats: int  # number of measurements that the seconds are divided into
    why: str
    # samples per second with which the setting cannot win: a trial whose first repeats stay below ends
    hopeless: float = 0.0
    # upper limit of the total time, without compilation: an over-long trial ends with the repeats it has
    most_s: float = math.inf

    def is_over(self, rates: Sequence[float], seconds: float = 0.0) -> bool:
        """Return whether no further repeat is needed, given these rates and the seconds elapsed."""
        no_hope = len(rates) == MIN_REPEATS and max(rates) < self.hopeless
        is_late = bool(rates) and seconds >= self.most_s
        return no_hope or is_late or len(rates) >= self.repeats

    def measured_s(self, rates: Sequence[float]) -> float:
        return self.seconds * len(rates) / self.repeats


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial: rates, or why there are none."""

    setting: EngineSetting
    rates: Sequence[float] = ()  # samples per second in each repeat
    # total time, including construction and warm-up of the engine, without compilation
    seconds: float = 0.0
    compile_s: float = 0.0  # time of compilation
    failure: str | None = None  # short reason why nothing was measured; None if something was
    out_of_memory: bool = False  # whether that is the reason: it limits only the number of learners
    no_room: bool = False  # whether it was rejected before it ran, for lack of memory: such a limit too


def doubling(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... below `most`, and `most` itself."""
    powers = itertools.takewhile(lambda count: count < most, (2**exponent for exponent in itertools.count()))
    return (*powers, most)


@dataclass(frozen=True)
class Candidate:
    """An engine with a number of threads, and the numbers of learners to try."""

    engine: str
    threads: int = 1
    # numbers of learners, ascending; the calibration may try others in between
    counts: tuple[int, ...] = doubling(64)
    setup_s: float = 0.0  # expected overhead of a trial, until trials have measured it
    # expected time of compilation; 0 if there is none or its result is cached
    compile_s: float = 0.0
    compiles_each: bool = False  # whether each number of learners is compiled separately, as in engine `fused`
    # number of learners to compile for while nothing is measured, or the closest of `counts`; None: the fewest
    start: int | None = None
    # expected speed-up over the best candidate without compilation, until measured; decides whether to compile
    expected_gain: float = 1.2

    def at(self, learners: int) -> EngineSetting:
        return EngineSetting(self.engine, learners, self.threads)


@dataclass(frozen=True)
class ThroughputCurve:
    """Measured throughput of a candidate by learners, and bounds for unmeasured numbers by diminishing returns."""

    points: tuple[tuple[int, float], ...]  # (learners, throughput), ascending, at least one

    def beyond(self, learners: int) -> float:
        """Return an upper bound for up to this many learners, more than were measured."""
        last, rate = self.points[-1]
        if learners <= last:
            return rate
        exponent = 1.0
        if len(self.points) > 1 and (before := self.points[-2])[0] > 1:  # averaging starts with the second, at a cost
            exponent = min(max(_log_slope(before, (last, rate)), 0.0), 1.0)
        return rate * math.exp(exponent * math.log(learners / last))

    def between(self, learners: int) -> float:
        """Return an upper bound for a number of learners between two that were measured."""
        below = [point for point in self.points if point[0] < learners]
        above = [point for point in self.points if point[0] > learners]
        secants = [pair for pair in (below[-2:], above[1::-1]) if len(pair) == 2]
        bounds = [_extended(first, second, learners) for first, second in secants]
        return min(bounds, default=math.inf)


def _log_slope(first: tuple[int, float], second: tuple[int, float]) -> float:
    return math.log(second[1] / first[1]) / math.log(second[0] / first[0])


def _extended(first: tuple[int, float], second: tuple[int, float], learners: int) -> float:
    """Extrapolate a secant beyond its second point."""
    slope = (second[1] - first[1]) / (second[0] - first[0])
    return second[1] + slope * (learners - second[0])
