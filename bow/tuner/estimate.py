"""What noisy measurements of throughput say: a median, how far it can be trusted, and whether it clears a bar.

Everything here is in natural logarithms: noise of throughput is relative, and ratios become differences.
"""

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

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
