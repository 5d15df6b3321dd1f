"""Liu et al.'s cost model: threads are added while that makes an operator faster."""

import math
from collections.abc import Iterable, Mapping

from bow.costs.case import Case, lanes
from bow.costs.curve import Curve
from bow.errors import SettingError


class HillClimb:
    """Finds the best case of one operator, and learns its curve on the way: asks for cases, hears seconds.

    It begins with one thread and adds `interval` threads at a time, once with one thread to a cache and once with two,
    until time has risen or the last step has reached all cores. Each of the two ends by itself. The last step of
    either is longer by what would be left over, so that the largest number of threads is measured and that at most
    `2 * most_threads / interval` cases are (rounded up). Equal times do not end a climb.

    Args:
        most_threads: cores of the machine.
        interval: by how many threads a step goes; with two threads to a cache rounded up to an even number.
        caches: every two cores share a cache, so both ways are tried; else there is one climb over all cores.

    Raises:
        SettingError: a value outside its range.

    Example:
        >>> climb = HillClimb(most_threads=8, interval=2, caches=False)
        >>> while (case := climb.next_case()) is not None:
        ...     climb.report(case, seconds=12 / case.threads + case.threads)
        >>> climb.best.threads, sorted(case.threads for case in climb.measured)
        (3, [1, 3, 5])
        >>> climb.curve.time_s(Case(2))
        10.0

    References:
        Liu, Li, Kestor, Vetter: Runtime concurrency control and operation scheduling for high performance neural
        network training, 2019, section III-C.
    """

    def __init__(self, most_threads: int, interval: int, caches: bool = True) -> None:
        if not 1 <= interval <= most_threads:
            raise SettingError(f"interval must be at least 1 and at most {most_threads} threads, got {interval}")
        self._lanes = [_Lane(_steps(lane, interval)) for lane in lanes(most_threads, caches)]
        self._measured: dict[Case, float] = {}
        self._curve: Curve | None = None

    @property
    def measured(self) -> Mapping[Case, float]:
        """Seconds by case, as far as they were reported."""
        return dict(self._measured)

    @property
    def best(self) -> Case:
        """The case with the shortest time so far, of equal ones that with fewer threads."""
        if not self._measured:
            raise SettingError("nothing was measured yet, so no case is the best; report one first")
        return min(self._measured, key=lambda case: (self._measured[case], case))

    @property
    def curve(self) -> Curve:
        """What is known of all cases by now."""
        if self._curve is None:
            self._curve = Curve(self.measured)
        return self._curve

    def next_case(self) -> Case | None:
        """What to measure now, with as few threads as are left, the same until it is reported; None: it has ended."""
        return min((asked for lane in self._lanes if (asked := lane.asked) is not None), default=None)

    def report(self, case: Case, seconds: float) -> None:
        """Hear how long the operator took in the case that `next_case` asked for."""
        if case != self.next_case():
            raise SettingError(f"the case that was asked for is {self.next_case()}, got {case}")
        if not (math.isfinite(seconds) and seconds >= 0):
            raise SettingError(f"seconds must be finite and at least 0, got {seconds}")
        self._measured[case] = seconds
        self._curve = None
        next(lane for lane in self._lanes if lane.asked == case).hear(seconds)


class HillClimbing:
    """The climbs of many operators, side by side: a cost model of all of them.

    One training step measures all operators that still climb in the same case, one after another, so the number of
    steps is that of the longest climb.

    Args:
        operators: keys, as in `CostModel`.
        most_threads: as in `HillClimb`.
        interval: as in `HillClimb`.
        caches: as in `HillClimb`.

    Raises:
        SettingError: a value outside its range.

    Example:
        >>> model = HillClimbing(["small", "large"], most_threads=4, interval=1, caches=False)
        >>> while (case := model.next_case()) is not None:
        ...     model.report(case, {"small": 1.0 * case.threads, "large": 8.0 / case.threads})
        >>> model.best("small").threads, model.best("large").threads, model.steps
        (1, 4, 4)
    """

    def __init__(self, operators: Iterable[str], most_threads: int, interval: int, caches: bool = True) -> None:
        self._climbs = {operator: HillClimb(most_threads, interval, caches) for operator in operators}
        self.steps = 0

    def next_case(self) -> Case | None:
        """The case of the next step; None when all climbs have ended."""
        asked = (climb.next_case() for climb in self._climbs.values())
        return min((case for case in asked if case is not None), default=None)

    def wanting(self, case: Case) -> list[str]:
        """The operators that climb there."""
        return [operator for operator, climb in self._climbs.items() if climb.next_case() == case]

    def report(self, case: Case, seconds: Mapping[str, float]) -> None:
        """Hear of a step."""
        wanting = self.wanting(case)
        if not wanting:
            raise SettingError(f"the case that was asked for is {self.next_case()}, got {case}")
        if missing := [operator for operator in wanting if operator not in seconds]:
            raise SettingError(f"no time of {missing[0]!r} with {case}; report all that `wanting` names")
        for operator in wanting:
            self._climbs[operator].report(case, seconds[operator])
        self.steps += 1

    def climb(self, operator: str) -> HillClimb:
        """The climb of one operator."""
        if operator not in self._climbs:
            raise SettingError(f"{operator!r} was never measured; name it among the operators")
        return self._climbs[operator]

    def best(self, operator: str) -> Case:
        """The best case of an operator so far."""
        return self.climb(operator).best

    def time_s(self, operator: str, case: Case) -> float:
        """Seconds by the operator's curve."""
        return self.climb(operator).curve.time_s(case)


class _Lane:
    """One climb through cases of one kind."""

    def __init__(self, steps: tuple[Case, ...]) -> None:
        self._steps = list(steps)
        self._last_s = math.inf

    @property
    def asked(self) -> Case | None:
        return self._steps[0] if self._steps else None

    def hear(self, seconds: float) -> None:
        del self._steps[: len(self._steps) if seconds > self._last_s else 1]
        self._last_s = seconds


def _steps(lane: tuple[Case, ...], interval: int) -> tuple[Case, ...]:
    """Cases of a lane that lie an interval apart, the last one moved to its end."""
    taken = lane[:: -(-interval // 2) if lane[0].shared else interval]
    return taken if len(taken) == 1 else (*taken[:-1], lane[-1])
