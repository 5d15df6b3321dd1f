"""Which types of operators slow each other down, and what keeps them separate where decisions are repeated."""

import math
from collections.abc import Collection, Sequence

from bow.errors import ScheduleError
from bow.schedule.scheduler.protocol import Start


class Interference:
    """Pairs of operator types of which one took far longer beside the other than it was predicted to take alone.

    A cost model knows operators that run alone. What they cost each other is not predicted but observed, and avoided
    from the next step on. An operator that was too slow blames every operator that ran beside it: which of several it
    was cannot be told from one time. That is cautious, for a pair that did no harm is kept apart as well.

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
        """The types that interfere; the two of a pair are in alphabetical order."""
        return frozenset(self._pairs)

    def observe(self, operator: int, predicted_ns: int, actual_ns: int, beside: Collection[int]) -> None:
        """Take note of how long an operator took."""
        if actual_ns > self.factor * predicted_ns:
            self._pairs.update(pair(self.kinds[operator], self.kinds[other]) for other in beside)


def pair(one: str, other: str) -> tuple[str, str]:
    """Two types, in alphabetical order."""
    return (one, other) if one <= other else (other, one)


def separation(
    decisions: Sequence[Start],
    dependencies: Sequence[Collection[int]],
    kinds: Sequence[str],
    pairs: Collection[tuple[str, str]],
) -> tuple[tuple[int, int], ...]:
    """What operators wait for so that types that interfere stay separate: `after` of a schedule.

    A scheduler that avoids such pairs starts the one when the other is over. Where its decisions are repeated,
    operators take other times than were predicted, and the two may meet after all. So the one that was started later
    waits for the other, unless it does so anyway: it depends on it, has one of its cores behind it, or waits for what
    comes behind it.
    """
    numbers = {start.operator: number for number, start in enumerate(decisions)}
    over: list[int] = []  # by decision: itself and those that are over before it, as the bits of a whole number
    last: dict[tuple[int, bool], int] = {}  # by core, or executor: the decision that had it last
    of_kind: dict[str, int] = {}
    found: list[tuple[int, int]] = []
    for number, start in enumerate(decisions):
        places = [(core, start.sibling) for core in start.cores or (start.executor,)]
        behind = {last[place] for place in places if place in last}
        behind |= {numbers[earlier] for earlier in dependencies[start.operator]}
        known = 1 << number
        for earlier in behind:
            known |= over[earlier]
        kind = kinds[start.operator]
        blamed = 0
        for other, started in of_kind.items():
            blamed |= started if pair(kind, other) in pairs else 0
        while left := blamed & ~known:
            latest = left.bit_length() - 1
            found.append((start.operator, decisions[latest].operator))
            known |= over[latest]
        over.append(known)
        of_kind[kind] = of_kind.get(kind, 0) | 1 << number
        last.update(dict.fromkeys(places, number))
    return tuple(found)
