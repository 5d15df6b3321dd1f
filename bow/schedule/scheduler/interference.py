"""Interference between operator types, and constraints that keep such types apart in recorded schedules."""

import math
from collections.abc import Collection, Sequence

from bow.errors import ScheduleError
from bow.schedule.scheduler.protocol import Start


class Interference:
    """Pairs of operator types of which one took far longer alongside the other than predicted alone."""

    # A slow operator blames every operator that ran alongside it, as a single time cannot tell which one it was:
    # harmless pairs are kept apart as well. Liu et al., 2019, section III-D, discussion.

    def __init__(self, kinds: Sequence[str], factor: float = 1.5) -> None:
        if not (math.isfinite(factor) and factor >= 1):
            raise ScheduleError(f"factor must be at least 1, got {factor}; 1.5 allows half as much again")
        self.kinds = tuple(kinds)
        self.factor = factor
        self._pairs: set[tuple[str, str]] = set()

    @property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The pairs of interfering types, each in alphabetical order."""
        return frozenset(self._pairs)

    def observe(self, operator: int, predicted_ns: int, actual_ns: int, overlapping: Collection[int]) -> None:
        if actual_ns > self.factor * predicted_ns:
            self._pairs.update(pair(self.kinds[operator], self.kinds[other]) for other in overlapping)


def pair(one: str, other: str) -> tuple[str, str]:
    """Return two types in alphabetical order."""
    return (one, other) if one <= other else (other, one)


def separation(
    decisions: Sequence[Start],
    dependencies: Sequence[Collection[int]],
    kinds: Sequence[str],
    pairs: Collection[tuple[str, str]],
) -> tuple[tuple[int, int], ...]:
    """Return the waits that keep interfering types apart: `after` of a schedule."""
    # When decisions are replayed, times differ from the predictions, and two operators may overlap that were decided to
    # run one after the other. So the later one waits, unless a dependency, a shared core or another wait implies it.
    numbers = {start.operator: number for number, start in enumerate(decisions)}
    over: list[int] = []  # by decision: bit set of itself and the decisions that have finished before it
    last: dict[tuple[int, bool], int] = {}  # by core (or executor): the last decision that held it
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
