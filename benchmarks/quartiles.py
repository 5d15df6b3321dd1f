"""What a number that was measured in several turns comes to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Quartiles:
    """A number that was measured several times.

    Attributes:
        median: of all measurements.
        low: a quarter of them lie below.
        high: a quarter of them lie above.
        n: how many there were.
    """

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quartiles":
        """Summarise measurements, at least one.

        Example:
            >>> Quartiles.of([5.0, 1.0, 2.0, 3.0, 4.0])
            Quartiles(median=3.0, low=2.0, high=4.0, n=5)
        """
        median = statistics.median(values)
        if len(values) < 2:
            return cls(median, median, median, len(values))
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))

    @classmethod
    def of_ratios(cls, values: Sequence[float], others: Sequence[float]) -> "Quartiles":
        """How many times as large as others that were measured in the same turns: what disturbs a turn disturbs both.

        Example:
            >>> Quartiles.of_ratios([2.0, 6.0], [1.0, 2.0]).median
            2.5
        """
        return cls.of([value / other for value, other in zip(values, others, strict=True)])

    def scaled(self, factor: float) -> "Quartiles":
        """The same in another unit."""
        return Quartiles(factor * self.median, factor * self.low, factor * self.high, self.n)

    def as_dict(self, digits: int) -> dict[str, Any]:
        """The values, rounded."""
        rounded = {name: round(getattr(self, name), digits) for name in ("median", "low", "high")}
        return {**rounded, "n": self.n}
