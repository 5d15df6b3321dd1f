"""What every model of operators' times is, what is chosen by one, and how good one is."""

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from bow.errors import SettingError
from bow.schedule.climbing import Threads


class CostModel(Protocol):
    """Predicts how long operators take."""

    def time_s(self, operator: str, case: Threads) -> float:
        """Seconds that an operator takes in a case."""
        ...


def candidates(model: CostModel, operator: str, cases: Iterable[Threads], count: int = 3) -> list[Threads]:
    """The cases in which an operator takes the least time, in ascending order of time; of equal ones fewer threads.

    Example:
        >>> class Halving:
        ...     def time_s(self, operator: str, case: Threads) -> float:
        ...         return 1 / min(case.threads, 4)
        >>> [case.threads for case in candidates(Halving(), "aten.mm.default", map(Threads, range(1, 9)))]
        [4, 5, 6]

    References:
        Liu et al., 2019, section III-D, strategy 3.
    """
    if count < 1:
        raise SettingError(f"count must be at least 1, got {count}")
    return sorted(cases, key=lambda case: (model.time_s(operator, case), case))[:count]


def accuracy(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """How close predictions are: `1 - mean(|(y^ - y) / y|)`, which is below 0 where they are off by more than y.

    Example:
        >>> round(accuracy([1.0, 3.0], [1.0, 2.0]), 6)
        0.75

    References:
        Liu et al., 2019, section III-B.
    """
    _check(predicted, actual)
    if not min(actual) > 0:
        raise SettingError(f"actual values must be above 0, got {min(actual)}; leave out what took no time")
    return 1 - math.fsum(abs(p - y) / y for p, y in zip(predicted, actual, strict=True)) / len(actual)


def r_squared(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """The coefficient of determination: `1 - sum((y^ - y)^2) / sum((y - mean(y))^2)`.

    Where all actual values are the same, 1 for exact predictions, else 0.

    Example:
        >>> r_squared([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
        0.5
    """
    _check(predicted, actual)
    mean = math.fsum(actual) / len(actual)
    missed = math.fsum((p - y) ** 2 for p, y in zip(predicted, actual, strict=True))
    varied = math.fsum((y - mean) ** 2 for y in actual)
    return 1 - missed / varied if varied else float(missed == 0)


def _check(predicted: Sequence[float], actual: Sequence[float]) -> None:
    if len(predicted) != len(actual) or not actual:
        raise SettingError(f"{len(predicted)} predictions for {len(actual)} values; give one for each, at least 1")
