"""Strategies that differ in one operator: whether one of them is better, and the way down until none is."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bow.planning.problem.split import Split
from bow.planning.search.limits import Ending, Limits
from bow.planning.search.metropolis import Improvement, Walk, Watch
from bow.planning.search.moves import SplitSpace
from bow.planning.simulator.simulated import Simulated


@dataclass(frozen=True)
class Alternative:
    """Another split of one operator.

    Attributes:
        operator: its position.
        split: the other split.
        makespan_ns: what a step takes with it; None: it does not fit.
    """

    operator: int
    split: Split
    makespan_ns: int | None


@dataclass(frozen=True)
class Neighbours:
    """What trying all strategies that differ in one operator has shown.

    Attributes:
        makespan_ns: of the strategy itself.
        tried: how many were simulated.
        refused: how many of them do not fit.
        best: the best one that is better than the strategy; None: none is.
    """

    makespan_ns: int
    tried: int
    refused: int
    best: Alternative | None

    @property
    def is_local_optimum(self) -> bool:
        """Whether no neighbour is better."""
        return self.best is None

    def __str__(self) -> str:
        if self.best is None or self.best.makespan_ns is None:
            return f"none of {self.tried:,} neighbours is better than {self.makespan_ns / 1e6:.3f} ms"
        return (
            f"of {self.tried:,} neighbours the best takes {self.best.makespan_ns / 1e6:.3f} ms instead of "
            f"{self.makespan_ns / 1e6:.3f} ms (operator {self.best.operator})"
        )


def try_neighbours(
    simulation: Simulated, splits: Sequence[Split], space: SplitSpace, watch: Callable[[int], None] | None = None
) -> Neighbours:
    """Simulate all strategies that differ in one operator's split.

    References:
        Jia, Zaharia, Aiken, 2018, section 8.4.
    """
    start = lowest = simulation.makespan_ns
    best, tried, refused = None, 0, 0
    for operator, old in enumerate(splits):
        for split in space.splits(operator):
            if split == old:
                continue
            tried += 1
            makespan = simulation.propose_changes({operator: split}, lowest - 1)
            simulation.undo()
            refused += makespan is None
            if makespan is not None and makespan < lowest:
                lowest, best = makespan, Alternative(operator, split, makespan)
        if watch is not None:
            watch(tried)
    return Neighbours(start, tried, refused, best)


def descend(
    simulation: Simulated,
    splits: Sequence[Split],
    space: SplitSpace,
    limits: Limits,
    *,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Walk:
    """Take better neighbours until there is none: operator by operator, round and round.

    Ctrl-C ends it, and what was best so far is returned.
    """
    descent = _Descent(simulation, splits, space, limits, clock)
    ending = descent.run(watch)
    return Walk(
        tuple(descent.splits),
        tuple(descent.bests),
        descent.tried,
        descent.tried,
        len(descent.bests) - 1,
        descent.refused,
        descent.seconds,
        ending,
    )


class _Descent:
    def __init__(
        self,
        simulation: Simulated,
        splits: Sequence[Split],
        space: SplitSpace,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._simulation, self._space, self._limits, self._clock = simulation, space, limits, clock
        self._start = clock()
        self.splits = list(splits)
        self.bests = [Improvement(0.0, 0, simulation.makespan_ns)]
        self.tried = self.refused = 0

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    def run(self, watch: Watch | None) -> Ending:
        operator, unchanged = 0, 0
        try:
            while unchanged < len(self.splits):
                if watch is not None and not watch(self.seconds, self.tried, self.bests[-1].makespan_ns):
                    return "interrupted"
                if self._limits.budget_s is not None and self.seconds >= self._limits.budget_s:
                    return "budget"
                if self._limits.proposals is not None and self.tried >= self._limits.proposals:
                    return "proposals"
                unchanged = 0 if self._improve(operator) else unchanged + 1
                operator = (operator + 1) % len(self.splits)
        except KeyboardInterrupt:
            return "interrupted"
        return "no gain"

    def _improve(self, operator: int) -> bool:
        """Take an operator's best split; whether it is another one."""
        lowest, better, old = self.bests[-1].makespan_ns, None, self.splits[operator]
        for split in self._space.splits(operator):
            if split == old:
                continue
            self.tried += 1
            makespan = self._simulation.propose_changes({operator: split}, lowest - 1)
            self._simulation.undo()
            self.refused += makespan is None
            if makespan is not None and makespan < lowest:
                lowest, better = makespan, split
        if better is None:
            return False
        self._simulation.propose_changes({operator: better})
        self._simulation.accept()
        self.splits[operator] = better
        self.bests.append(Improvement(self.seconds, self.tried, lowest))
        return True
