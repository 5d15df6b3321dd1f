"""Statistics of measurements in several turns, as plain values."""

import statistics
from collections.abc import Sequence
from typing import Any


def spread(values: Sequence[float], digits: int, scale: float = 1.0) -> dict[str, Any]:
    """Return median, minimum and maximum of measurements, at least one.

    Example:
        >>> spread([3.0, 1.0, 2.0], digits=1)
        {'median': 2.0, 'low': 1.0, 'high': 3.0, 'n': 3}
    """
    return _rounded(statistics.median(values), min(values), max(values), len(values), digits, scale)


def whole_spread(values: Sequence[float]) -> dict[str, Any]:
    """The same, not rounded: for pages that compute with them."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "n": len(values)}


def quartiles(values: Sequence[float], digits: int, scale: float = 1.0) -> dict[str, Any]:
    """Return the median and the quartiles of measurements.

    Example:
        >>> quartiles([5.0, 1.0, 2.0, 3.0, 4.0], digits=1)
        {'median': 3.0, 'low': 2.0, 'high': 4.0, 'n': 5}
    """
    if len(values) < 2:
        return spread(values, digits, scale)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return _rounded(median, low, high, len(values), digits, scale)


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return ratios by turn, because disturbances of a turn affect both values.

    Example:
        >>> ratios([2.0, 6.0], [1.0, 2.0])
        [2.0, 3.0]
    """
    return [value / other for value, other in zip(values, others, strict=True)]


def median_interval(values: Sequence[float], digits: int = 3, confidence: float = 0.95) -> dict[str, Any]:
    """Return the narrowest interval between order statistics that contains the true median with some probability.

    The number of measurements below the true median is binomial, whatever their distribution: from the k-th lowest to
    the k-th highest, the probability is `1 - 2 P(Binomial(n, 1/2) < k)`. With fewer than 6 measurements 0.95 is not
    attainable, and the interval is from the lowest to the highest.

    Example:
        >>> median_interval([float(value) for value in range(1, 21)])
        {'median': 10.5, 'low': 6.0, 'high': 15.0, 'n': 20, 'confidence': 0.959}

    References:
        W. R. Thompson, On confidence ranges for the median and other expectation distributions, 1936.
    """
    from scipy.stats import binom  # installed with scikit-learn; not needed for GPU measurements

    ordered, n = sorted(values), len(values)
    reached = {k: float(1 - 2 * binom.cdf(k - 1, n, 0.5)) for k in range(1, (n + 1) // 2 + 1)}
    k = max((k for k, probability in reached.items() if probability >= confidence), default=1)
    found = _rounded(statistics.median(ordered), ordered[k - 1], ordered[n - k], n, digits, 1.0)
    return {**found, "confidence": round(reached[k], 3)}


def _rounded(median: float, low: float, high: float, n: int, digits: int, scale: float) -> dict[str, Any]:
    rounded = (round(scale * value, digits) for value in (median, low, high))
    return {**dict(zip(("median", "low", "high"), rounded, strict=True)), "n": n}
