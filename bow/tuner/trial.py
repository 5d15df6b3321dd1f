"""What the tuner can try: settings, candidates of settings, trials and their results."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from bow.observe.text import learners_text
from bow.values import whole

ENOUGH_TO_GIVE_UP = 2  # so many repeats are made even where there is no hope


@dataclass(frozen=True)
class EngineSetting:
    """One way of running a training on a device."""

    engine: str  # a name that the caller understands, such as `graph` or `graph+compiled`
    learners: int = 1  # how many the device trains
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

    setting: EngineSetting  # what is to be measured, warm
    # how long to measure in all, warm-up and whatever comes before apart; a repeat that a single round exceeds
    # takes that round
    seconds: float
    repeats: int  # into how many measurements the seconds are divided
    why: str
    # samples per second that leave the setting no hope; a trial whose first repeats stay below it ends
    hopeless: float = 0.0
    # what it may take in all, compilation apart: one whose rounds take longer than expected ends with what it has
    most_s: float = math.inf

    def is_over(self, rates: Sequence[float], seconds: float = 0.0) -> bool:
        """Whether no further repeat is needed behind these, the trial having taken so long by now."""
        no_hope = len(rates) == ENOUGH_TO_GIVE_UP and max(rates) < self.hopeless
        is_late = bool(rates) and seconds >= self.most_s
        return no_hope or is_late or len(rates) >= self.repeats

    def measured_s(self, rates: Sequence[float]) -> float:
        return self.seconds * len(rates) / self.repeats


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial: rates, or why there are none."""

    setting: EngineSetting
    rates: Sequence[float] = ()  # samples per second in each repeat
    # everything that the trial took, making the engine and warming it up included, compilation apart
    seconds: float = 0.0
    compile_s: float = 0.0  # what compilation took besides
    failure: str | None = None  # why nothing was measured, in a few words; None where something was
    out_of_memory: bool = False  # whether that is the reason: a wall for more learners, and for nothing else
    no_room: bool = False  # whether it was refused before it ran, for want of room: a wall as well


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the largest number itself."""
    powers = itertools.takewhile(lambda count: count < most, (2**exponent for exponent in itertools.count()))
    return (*powers, most)


@dataclass(frozen=True)
class Candidate:
    """An engine with a number of threads, and the numbers of learners to climb through."""

    engine: str
    threads: int = 1
    # numbers of learners, ascending; between two of them the calibration may refine
    counts: tuple[int, ...] = doubling(64)
    setup_s: float = 0.0  # seconds that a trial is expected to take besides measuring; what trials take replaces it
    # seconds that compilation is expected to take; 0 where there is none or its result is in a cache
    compile_s: float = 0.0
    compiles_each: bool = False  # every number of learners is compiled for itself, as in the fused engine
    # the number of learners that it is compiled for where nothing is measured yet, or the closest of `counts`;
    # None: the fewest
    start: int | None = None
    # how many times the best throughput of the candidates without compilation this one is expected to have, until it
    # is measured: whether compiling is tried depends on it
    expected_gain: float = 1.2

    def at(self, learners: int) -> EngineSetting:
        return EngineSetting(self.engine, learners, self.threads)


@dataclass(frozen=True)
class ThroughputCurve:
    """Throughput of a candidate by learners, as far as it is measured; diminishing returns bound what is not."""

    points: tuple[tuple[int, float], ...]  # (learners, throughput), ascending, at least one

    def beyond(self, learners: int) -> float:
        """At most so much is to be had with up to so many learners, more than were measured."""
        last, rate = self.points[-1]
        if learners <= last:
            return rate
        exponent = 1.0
        if len(self.points) > 1 and (before := self.points[-2])[0] > 1:  # with the second averaging begins, at a cost
            exponent = min(max(_log_slope(before, (last, rate)), 0.0), 1.0)
        return rate * math.exp(exponent * math.log(learners / last))

    def between(self, learners: int) -> float:
        """At most so much is to be had with a number of learners between two that were measured."""
        below = [point for point in self.points if point[0] < learners]
        above = [point for point in self.points if point[0] > learners]
        secants = [pair for pair in (below[-2:], above[1::-1]) if len(pair) == 2]
        bounds = [_extended(first, second, learners) for first, second in secants]
        return min(bounds, default=math.inf)


def _log_slope(first: tuple[int, float], second: tuple[int, float]) -> float:
    return math.log(second[1] / first[1]) / math.log(second[0] / first[0])


def _extended(first: tuple[int, float], second: tuple[int, float], learners: int) -> float:
    """A secant, read behind its second point."""
    slope = (second[1] - first[1]) / (second[0] - first[0])
    return second[1] + slope * (learners - second[0])
