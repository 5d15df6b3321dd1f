"""Settings that take turns, and what can be said of the ratio of two of them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bow.training.trials import Trials
from bow.tuner import EngineSetting, Trial


@dataclass(frozen=True)
class Interval:
    """A median and what is known of it."""

    median: float  # of the measurements
    low: float  # lower end of the interval
    high: float  # upper end
    n: int  # measurements
    confidence: float  # the probability that such an interval holds the true median

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"

    def as_dict(self) -> dict[str, Any]:
        """The values, rounded."""
        values = {name: round(getattr(self, name), 3) for name in ("median", "low", "high", "confidence")}
        return {**values, "n": self.n}


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The narrowest interval between ordered measurements that holds the true median with some probability.

    The number of measurements below the true median is binomial, whatever their distribution:
    from the k-th lowest to the k-th highest, the probability is `1 - 2 P(Binomial(n, 1/2) < k)`.

    Example:
        >>> found = median_interval([float(value) for value in range(1, 21)])
        >>> found.median, found.low, found.high, round(found.confidence, 3)
        (10.5, 6.0, 15.0, 0.959)

    References:
        W. R. Thompson, On confidence ranges for the median and other expectation distributions, 1936.
    """
    ordered, n = sorted(values), len(values)
    reached = {k: 1 - 2 * sum(math.comb(n, below) for below in range(k)) / 2**n for k in range(1, (n + 1) // 2 + 1)}
    k = max((k for k, probability in reached.items() if probability >= confidence), default=1)
    return Interval(statistics.median(ordered), ordered[k - 1], ordered[n - k], n, reached[k])


def ratio(rates: Sequence[float], others: Sequence[float]) -> Interval:
    """Throughput over another, turn by turn: what disturbs a turn disturbs both."""
    return median_interval([rate / other for rate, other in zip(rates, others, strict=True)])


def take_turns(
    trials: Trials, settings: Sequence[EngineSetting], *, turns: int, stint_s: float
) -> tuple[Mapping[EngineSetting, Sequence[float]], Mapping[EngineSetting, str]]:
    """Let all settings run once in every turn, one behind the other, every other turn in reverse order."""
    rates: dict[EngineSetting, list[float]] = {setting: [] for setting in settings}
    failures: dict[EngineSetting, str] = {}
    for turn in range(turns):
        for setting in settings if turn % 2 == 0 else reversed(settings):
            if setting in failures:
                continue
            measured = trials.run(Trial(setting, stint_s, 1, "in turn"))
            rates[setting] += measured.rates
            if measured.failure is not None:
                failures[setting] = measured.failure
    return {setting: found for setting, found in rates.items() if setting not in failures}, failures
