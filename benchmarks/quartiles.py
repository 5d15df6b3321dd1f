"""What a number that was measured in several turns comes to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Quartiles:
    """A number that was measured several times."""

    median: float  # of all measurements
    low: float  # a quarter of them lie below
    high: float  # a quarter of them lie above
    n: int  # how many there were

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quartiles":
        """Summarise measurements, at least one."""
        median = statistics.median(values)
        if len(values) < 2:
            return cls(median, median, median, len(values))
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))

    @classmethod
    def of_ratios(cls, values: Sequence[float], others: Sequence[float]) -> "Quartiles":
        """Ratios to what was measured in the same turns: what disturbs a turn disturbs both."""
        return cls.of([value / other for value, other in zip(values, others, strict=True)])

    def scaled(self, factor: float) -> "Quartiles":
        """The same in another unit."""
        return Quartiles(factor * self.median, factor * self.low, factor * self.high, self.n)

    def as_dict(self, digits: int) -> dict[str, Any]:
        """The values, rounded."""
        rounded = {name: round(getattr(self, name), digits) for name in ("median", "low", "high")}
        return {**rounded, "n": self.n}
