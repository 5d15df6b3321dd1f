"""Settings, candidates and trials of the tuner, and the record of their results."""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

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
            slope = math.log(rate / before[1]) / math.log(last / before[0])
            exponent = min(max(slope, 0.0), 1.0)
        return rate * math.exp(exponent * math.log(learners / last))

    def between(self, learners: int) -> float:
        """Return an upper bound for a number of learners between two that were measured."""
        below = [point for point in self.points if point[0] < learners]
        above = [point for point in self.points if point[0] > learners]
        secants = [pair for pair in (below[-2:], above[1::-1]) if len(pair) == 2]
        bounds = [_extended(first, second, learners) for first, second in secants]
        return min(bounds, default=math.inf)


def _extended(first: tuple[int, float], second: tuple[int, float], learners: int) -> float:
    """Extrapolate a secant beyond its second point."""
    slope = (second[1] - first[1]) / (second[0] - first[0])
    return second[1] + slope * (learners - second[0])


# Lower limit of the noise of one result: a handful of measurements can agree by chance
MIN_NOISE = 0.005
NUM_STANDARD_ERRORS = 2.0  # standard errors required between an estimate and a bar

# Standard error of the median of n normal values, in units of their deviation / sqrt(n), for large n
_MEDIAN_ERROR = math.sqrt(math.pi / 2)

# From the median absolute difference of two normal values to their standard deviation
_DIFFERENCE = 1 / (math.sqrt(2) * statistics.NormalDist().inv_cdf(0.75))


@dataclass(frozen=True)
class LogEstimate:
    """The logarithm of a throughput, or of the ratio of two, with its standard error."""

    log: float
    error: float

    @property
    def value(self) -> float:
        return math.exp(self.log)

    def over(self, other: "LogEstimate") -> "LogEstimate":
        return LogEstimate(self.log - other.log, math.hypot(self.error, other.error))

    def exceeds(self, bar: float) -> bool | None:
        """Return whether it is above a bar, a relative gain; None if that is too close to call."""
        gap = self.log - math.log1p(bar)
        return None if abs(gap) <= NUM_STANDARD_ERRORS * self.error else gap > 0


def estimate(rates: Sequence[float], noise: float) -> LogEstimate:
    """Return the median of some measurements, which is robust to disturbed ones."""
    return LogEstimate(math.log(statistics.median(rates)), _MEDIAN_ERROR * noise / math.sqrt(len(rates)))


def steps_of(rates: Sequence[float]) -> list[float]:
    """Return the absolute differences of the logarithms of neighbouring rates."""
    return [abs(math.log(later / earlier)) for earlier, later in itertools.pairwise(rates)]


def noise_from(steps: Collection[float]) -> float:
    """Return the noise of one result from such differences, robust to outliers and slow drifts."""
    return max(MIN_NOISE, _DIFFERENCE * statistics.median(steps)) if steps else MIN_NOISE


# Maps a number of learners to the value of a sample, relative to one learner
Efficiency: TypeAlias = Callable[[int], float]

# Standard deviation of the logarithm between trials, in addition to that within them: slow phases of a machine may
# last as long as a trial, so that its repeats do not show them
BETWEEN_TRIALS = 0.05


def full_efficiency(learners: int) -> float:
    """Efficiency of the objective `throughput`: 1 for any number of learners."""
    return 1.0


class TrialRecord:
    """Measurements by setting, and scores: throughput times statistical efficiency."""

    def __init__(self, efficiency: Efficiency, before_s: float = 0.0) -> None:
        self.efficiency = efficiency
        self.before_s = before_s
        self.trials: dict[EngineSetting, list[TrialResult]] = {}
        self.refused: dict[EngineSetting, str] = {}
        # By engine: the fewest learners that memory was too small for, and why; decreases only, as larger
        # numbers are not tried again
        self.memory_limits: dict[str, tuple[int, str]] = {}
        self.failures: dict[str, tuple[int, str]] = {}  # By engine: the number of learners from which it fails, and why
        self.spent_s = before_s
        self.compile_s = 0.0  # part of it spent in compilation
        self._scores: dict[EngineSetting, LogEstimate] = {}

    def add(self, result: TrialResult) -> None:
        setting = result.setting
        worked_before = any(known.engine == setting.engine and self.rates(known) for known in self.trials)
        self.trials.setdefault(setting, []).append(result)
        self.compile_s += result.compile_s
        self.spent_s += result.seconds + result.compile_s
        self.refused.pop(setting, None)
        self._scores.clear()  # every result changes the common noise estimate
        self.__dict__.pop("noise", None)
        learners = learners_text(setting.learners)
        if result.out_of_memory or result.no_room:
            why = f"{learners} ran out of memory" if result.out_of_memory else f"not enough memory for {learners}"
            self.memory_limits[setting.engine] = setting.learners, why
        elif result.failure is not None:
            since, with_ = (setting.learners, f" with {learners}") if worked_before else (1, "")
            self.failures[setting.engine] = since, f"{setting.engine} failed{with_}: {result.failure}"

    def forget_refusals(self, candidate: Candidate) -> None:
        self.refused = {
            setting: why
            for setting, why in self.refused.items()
            if (setting.engine, setting.threads) != (candidate.engine, candidate.threads)
        }

    def obstacle(self, setting: EngineSetting) -> str | None:
        """Return why a setting must not be tried, whatever its merit; None if it may."""
        limits = [found[setting.engine] for found in (self.failures, self.memory_limits) if setting.engine in found]
        return next((why for since, why in limits if setting.learners >= since), None)

    @functools.cached_property
    def noise(self) -> float:
        """The standard deviation of the logarithm of one repeat, from all settings together."""
        return noise_from([step for setting in self.trials for step in steps_of(self.rates(setting))])

    @property
    def measured(self) -> list[EngineSetting]:
        """Settings that ran and may be chosen, in the order of their first trials."""
        limits = self.memory_limits
        return [
            setting
            for setting, trials in self.trials.items()
            if setting.engine not in limits or setting.learners < limits[setting.engine][0]
            if all(trial.failure is None for trial in trials)
        ]

    def rates(self, setting: EngineSetting) -> list[float]:
        return [rate for result in self.trials.get(setting, ()) for rate in result.rates]

    def score(self, setting: EngineSetting) -> LogEstimate:
        if setting not in self._scores:
            found = estimate(self.rates(setting), self.noise)
            error = math.hypot(found.error, BETWEEN_TRIALS / math.sqrt(len(self.trials[setting])))
            self._scores[setting] = LogEstimate(found.log + log_efficiency(self.efficiency, setting.learners), error)
        return self._scores[setting]

    def gain(self, setting: EngineSetting, over: EngineSetting) -> LogEstimate:
        return self.score(setting).over(self.score(over))

    def best(self, among: Iterable[EngineSetting] | None = None) -> EngineSetting | None:
        settings = self.measured if among is None else among
        return max(settings, key=lambda setting: self.score(setting).log, default=None)

    def counts(self, candidate: Candidate) -> list[int]:
        """Return the measured numbers of learners of a candidate, ascending."""
        own = (candidate.engine, candidate.threads)
        return sorted(setting.learners for setting in self.measured if (setting.engine, setting.threads) == own)

    def curve(self, candidate: Candidate) -> ThroughputCurve:
        noise = self.noise
        points = tuple((n, estimate(self.rates(candidate.at(n)), noise).value) for n in self.counts(candidate))
        return ThroughputCurve(points)

    def most_beyond(self, candidate: Candidate) -> float:
        """Return the logarithm of the highest score that a candidate can reach with more learners than measured."""
        curve, (*_, last) = self.curve(candidate), self.counts(candidate)
        scores = [self._log_score(curve.beyond(n), n) for n in candidate.counts if n > last]
        return max(scores, default=-math.inf)

    def most_between(self, candidate: Candidate, learners: int) -> float:
        """Return the logarithm of the highest score that an unmeasured number of learners can reach."""
        curve = self.curve(candidate)
        inside = learners < curve.points[-1][0]
        return self._log_score(curve.between(learners) if inside else curve.beyond(learners), learners)

    def _log_score(self, rate: float, learners: int) -> float:
        return (math.log(rate) if rate > 0 else -math.inf) + log_efficiency(self.efficiency, learners)


def log_efficiency(efficiency: Efficiency, learners: int) -> float:
    """Return the logarithm of an efficiency, which is at least 1e-12."""
    return math.log(max(efficiency(learners), 1e-12))
