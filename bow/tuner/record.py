"""What a calibration knows: measurements, how far they can be trusted, failures, and what was not tried."""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bow.tuner.trial import Curve, Lane, Measurement, Setting, count_text

NOISE_FLOOR = 0.005
"""Noise of one measurement is taken to be at least this: a handful of measurements can agree by chance."""

SURENESS = 2.0
"""So many standard errors have to lie between an estimate and a bar."""

_MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""Standard error of the median of n normal values, in units of their deviation / sqrt(n), for large n."""

_DIFFERENCE = 1 / (math.sqrt(2) * statistics.NormalDist().inv_cdf(0.75))
"""From the median absolute difference of two normal values to their standard deviation."""


@dataclass(frozen=True)
class Estimate:
    """The logarithm of a throughput, or of the ratio of two.

    Attributes:
        log: the estimate.
        error: its standard error.
    """

    log: float
    error: float

    @property
    def value(self) -> float:
        """The throughput or ratio itself."""
        return math.exp(self.log)

    def over(self, other: "Estimate") -> "Estimate":
        """How many times another one this is.

        Example:
            >>> ratio = estimate([200.0], noise=0.03).over(estimate([100.0], noise=0.04))
            >>> round(ratio.value, 9), round(ratio.error / 0.05, 3)
            (2.0, 1.253)
        """
        return Estimate(self.log - other.log, math.hypot(self.error, other.error))

    def exceeds(self, bar: float) -> bool | None:
        """Whether it is above a bar, a relative gain; None where that is too close to call.

        Example:
            >>> clear, close = Estimate(log=0.10, error=0.01), Estimate(log=0.04, error=0.01)
            >>> clear.exceeds(0.03), close.exceeds(0.03), close.exceeds(0.2)
            (True, None, False)
        """
        gap = self.log - math.log1p(bar)
        return None if abs(gap) <= SURENESS * self.error else gap > 0


def estimate(rates: Sequence[float], noise: float) -> Estimate:
    """The median of some measurements: one that something else disturbed does not move it."""
    return Estimate(math.log(statistics.median(rates)), _MEDIAN_ERROR * noise / math.sqrt(len(rates)))


def noise_of(groups: Iterable[Sequence[float]]) -> float:
    """The standard deviation of the logarithm of one measurement.

    It is the median of differences between neighbours: neither outliers nor a slow drift raise it.

    Example:
        >>> noise_of([[100.0, 100.0, 100.0]])
        0.005
        >>> round(noise_of([[100.0, 102.0, 99.0, 101.0], [50.0, 51.0, 49.0, 20.0]]), 3)
        0.026
    """
    return noise_from([step for group in groups for step in steps_of(group)])


def steps_of(rates: Sequence[float]) -> list[float]:
    """By how much neighbours differ, absolutely."""
    return [abs(math.log(later / earlier)) for earlier, later in itertools.pairwise(rates)]


def noise_from(steps: Collection[float]) -> float:
    """The same from the differences themselves; the floor where there are none."""
    return max(NOISE_FLOOR, _DIFFERENCE * statistics.median(steps)) if steps else NOISE_FLOOR


Efficiency: TypeAlias = Callable[[int], float]
"""From a number of learners to what a sample is worth with so many, 1 being what it is worth with one."""

BETWEEN_TRIALS = 0.05
"""Deviation of the logarithm from trial to trial, besides that within them: machines are slower now and then, for as
long as a trial takes, and repeats of one trial know nothing of that."""


def full_efficiency(learners: int) -> float:
    """The objective `throughput`: a sample is worth the same with any number of learners."""
    return 1.0


class Record:
    """Measurements by setting, and scores: throughput times statistical efficiency.

    Args:
        efficiency: of a number of learners.
        before_s: what was spent before the first trial.
    """

    def __init__(self, efficiency: Efficiency, before_s: float = 0.0) -> None:
        self.efficiency = efficiency
        self.before_s = before_s
        self.trials: dict[Setting, list[Measurement]] = {}
        self.refused: dict[Setting, str] = {}
        self.walls: dict[str, tuple[int, str]] = {}
        """By engine: the fewest learners that there was no memory for, and why; so many are not tried again, so that it
        only falls."""
        self.broken: dict[str, tuple[int, str]] = {}
        """By engine: from how many learners on it does not run, and why."""
        self.spent_s = before_s
        self.compile_s = 0.0
        """Of it, what compilation took."""
        self._scores: dict[Setting, Estimate] = {}

    def add(self, measurement: Measurement) -> None:
        """Take in what came of a trial."""
        setting = measurement.setting
        worked_before = any(known.engine == setting.engine and self.rates(known) for known in self.trials)
        self.trials.setdefault(setting, []).append(measurement)
        self.compile_s += measurement.compile_s
        self.spent_s += measurement.seconds + measurement.compile_s
        self.refused.pop(setting, None)
        self._scores.clear()  # every measurement says something about the noise of all
        self.__dict__.pop("noise", None)
        learners = count_text(setting.learners)
        if measurement.out_of_memory or measurement.no_room:
            why = f"{learners} ran out of memory" if measurement.out_of_memory else f"there is no room for {learners}"
            self.walls[setting.engine] = setting.learners, why
        elif measurement.failure is not None:
            since, with_ = (setting.learners, f" with {learners}") if worked_before else (1, "")
            self.broken[setting.engine] = since, f"{setting.engine} failed{with_}: {measurement.failure}"

    def forget_refusals(self, lane: Lane) -> None:
        """Nothing of a lane has been refused."""
        self.refused = {
            setting: why
            for setting, why in self.refused.items()
            if (setting.engine, setting.threads) != (lane.engine, lane.threads)
        }

    def obstacle(self, setting: Setting) -> str | None:
        """Why a setting must not be tried, whatever it would bring."""
        limits = [found[setting.engine] for found in (self.broken, self.walls) if setting.engine in found]
        return next((why for since, why in limits if setting.learners >= since), None)

    @functools.cached_property
    def noise(self) -> float:
        """The standard deviation of the logarithm of one repeat, from all settings together."""
        return noise_of(self.rates(setting) for setting in self.trials)

    @property
    def measured(self) -> list[Setting]:
        """Settings that ran and may be chosen, in the order of their first trials.

        One that failed in a later trial, or has as many learners as ran out of memory since, is not among them.
        """
        return [setting for setting, trials in self.trials.items() if self._is_sound(setting, trials)]

    def rates(self, setting: Setting) -> list[float]:
        """All repeats of a setting, in order."""
        return [rate for measurement in self.trials.get(setting, ()) for rate in measurement.rates]

    def score(self, setting: Setting) -> Estimate:
        """Throughput times efficiency of a setting that was measured."""
        if setting not in self._scores:
            found = estimate(self.rates(setting), self.noise)
            error = math.hypot(found.error, BETWEEN_TRIALS / math.sqrt(len(self.trials[setting])))
            self._scores[setting] = Estimate(found.log + self._log_efficiency(setting.learners), error)
        return self._scores[setting]

    def rate_for(self, log_score: float, learners: int) -> float:
        """The samples per second that so many learners need for a score, given by its logarithm."""
        return math.exp(log_score - self._log_efficiency(learners))

    def gain(self, setting: Setting, over: Setting) -> Estimate:
        """How many times another setting's score one has."""
        return self.score(setting).over(self.score(over))

    def best(self, among: Iterable[Setting] | None = None) -> Setting | None:
        """The highest score; None where nothing was measured."""
        settings = self.measured if among is None else among
        return max(settings, key=lambda setting: self.score(setting).log, default=None)

    def counts(self, lane: Lane) -> list[int]:
        """The numbers of learners that were measured in a lane, ascending."""
        own = (lane.engine, lane.threads)
        return sorted(setting.learners for setting in self.measured if (setting.engine, setting.threads) == own)

    def curve(self, lane: Lane) -> Curve:
        """What is known of a lane of which something was measured."""
        noise = self.noise
        points = tuple((n, estimate(self.rates(lane.at(n)), noise).value) for n in self.counts(lane))
        return Curve(points)

    def most_beyond(self, lane: Lane) -> float:
        """The logarithm of the highest score that a lane can reach with more learners than were measured."""
        curve, (*_, last) = self.curve(lane), self.counts(lane)
        scores = [self._log_score(curve.beyond(n), n) for n in lane.counts if n > last]
        return max(scores, default=-math.inf)

    def most_between(self, lane: Lane, learners: int) -> float:
        """The logarithm of the highest score that a number of learners amid those that were measured can have."""
        curve = self.curve(lane)
        inside = learners < curve.points[-1][0]
        return self._log_score(curve.between(learners) if inside else curve.beyond(learners), learners)

    def _log_score(self, rate: float, learners: int) -> float:
        return (math.log(rate) if rate > 0 else -math.inf) + self._log_efficiency(learners)

    def _log_efficiency(self, learners: int) -> float:
        return log_efficiency(self.efficiency, learners)

    def _is_sound(self, setting: Setting, trials: Iterable[Measurement]) -> bool:
        wall, _ = self.walls.get(setting.engine, (math.inf, ""))
        return setting.learners < wall and all(trial.failure is None for trial in trials)


def log_efficiency(efficiency: Efficiency, learners: int) -> float:
    """Its logarithm; samples that are worth nothing are worth almost nothing."""
    return math.log(max(efficiency(learners), 1e-12))
