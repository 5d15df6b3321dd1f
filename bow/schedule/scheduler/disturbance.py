"""Which types of operators had better not run at the same time."""

import math
from collections.abc import Collection, Sequence

from bow.errors import ScheduleError


class Disturbances:
    """Pairs of operator types of which one took far longer beside the other than it was predicted to take alone.

    A cost model knows operators that run alone. What they cost each other is not predicted but observed, and avoided
    from the next step on. An operator that was too slow blames every operator that ran beside it: which of several it
    was cannot be told from one time. That is cautious, for a pair that did no harm is kept apart as well.

    Args:
        kinds: by operator: its type.
        factor: how many times the predicted time an operator may take. The paper names no number.

    Raises:
        ScheduleError: a factor below 1.

    Example:
        >>> disturbances = Disturbances(["conv", "relu", "add"], factor=1.5)
        >>> disturbances.observe(0, predicted_ns=100, actual_ns=149, beside=[1])
        >>> disturbances.observe(0, predicted_ns=100, actual_ns=151, beside=[2])
        >>> disturbances.pairs
        frozenset({('add', 'conv')})

    References:
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network training,
        2019, section III-D, discussion.
    """

    def __init__(self, kinds: Sequence[str], factor: float = 1.5) -> None:
        if not (math.isfinite(factor) and factor >= 1):
            raise ScheduleError(f"factor must be at least 1, got {factor}; 1.5 allows half as much again")
        self.kinds = tuple(kinds)
        self.factor = factor
        self._pairs: set[tuple[str, str]] = set()

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The types that disturb each other; the two of a pair are in alphabetical order."""
        return frozenset(self._pairs)

    def observe(self, operator: int, predicted_ns: int, actual_ns: int, beside: Collection[int]) -> None:
        """Take note of how long an operator took."""
        if actual_ns > self.factor * predicted_ns:
            self._pairs.update(pair(self.kinds[operator], self.kinds[other]) for other in beside)


def pair(one: str, other: str) -> tuple[str, str]:
    """Two types, in alphabetical order."""
    return (one, other) if one <= other else (other, one)
