"""The random walk through partitions that prefers fast ones, when it ends, and the descent to a local optimum."""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bow.errors import SettingError
from bow.planning.problem.partition import Split
from bow.planning.search.proposals import Changes, Proposals
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.simulation import Simulated
from bow.values import number, whole

GRACE = 20  # no walk ends for want of success before so many proposals for each operator

Ending: TypeAlias = Literal["budget", "proposals", "no gain", "interrupted"]


@dataclass(frozen=True)
class Limits:
    """When a walk ends; whatever comes first."""

    budget_s: float | None = None  # after so many seconds; None: never for that
    proposals: int | None = None  # after so many proposals; None: never for that
    # when the best strategy has not got better for this part of the walk, in seconds, or in proposals where there is no
    # budget in seconds; None: never for that. The paper has a half
    patience: float | None = 0.5
    grace: int | None = None  # not for that before so many proposals; None: 20 for each operator

    def __post_init__(self) -> None:
        if self.budget_s is None and self.proposals is None and self.patience is None:
            raise SettingError("a search without budget_s, proposals and patience never ends; give one of them")
        if self.budget_s is not None:
            number("budget_s", self.budget_s, above=0)
        if self.proposals is not None:
            whole("proposals", self.proposals, least=0)
        if self.patience is not None:
            number("patience", self.patience, above=0, most=1, remedy="0.5 is half of the search")

    def ending(self, seconds: float, proposals: int, best_s: float, best_at: int, operators: int) -> Ending | None:
        """Why a walk ends now; None: it goes on."""
        if self.budget_s is not None and seconds >= self.budget_s:
            return "budget"
        if self.proposals is not None and proposals >= self.proposals:
            return "proposals"
        grace = GRACE * operators if self.grace is None else self.grace
        if self.patience is not None and proposals >= grace:
            now, then = (proposals, best_at) if self.budget_s is None else (seconds, best_s)
            if now - then >= self.patience * now:
                return "no gain"
        return None


TEMPERATURE = 0.001  # a strategy that is slower by a thousandth of the start's time is accepted with probability 1/e

Watch: TypeAlias = Callable[[float, int, int], bool]
"""Is told seconds, proposals and the best time in nanoseconds; False ends the walk."""

WATCH_S = 0.1  # so often who watches a walk is told how it goes


@dataclass(frozen=True)
class Improvement:
    """When a strategy was found that is better than all before."""

    seconds: float  # since the start of the walk
    proposals: int
    makespan_ns: int


@dataclass(frozen=True)
class RecordedProposal:
    """A proposal as it was, to be played again."""

    changes: Changes  # operators and their new splits
    limit_ns: int
    is_accepted: bool


@dataclass(frozen=True)
class Walk:
    """What a walk found."""

    splits: tuple[Split, ...]  # by operator, of the best strategy
    bests: tuple[Improvement, ...]  # the start, and every strategy that was better than all before
    proposals: int  # how many were drawn; some of them leave the strategy as it is
    evaluated: int  # how many were simulated
    accepted: int
    refused: int  # how many of them did not fit
    seconds: float
    ending: Ending
    recorded: tuple[RecordedProposal, ...] = ()  # every proposal that was simulated, where asked for

    @property
    def makespan_ns(self) -> int:
        """Of a step with the best strategy."""
        return self.bests[-1].makespan_ns

    def followed_by(self, other: "Walk") -> "Walk":
        """Both as one; the other one began where this one found its best strategy."""
        later = (
            Improvement(self.seconds + best.seconds, self.proposals + best.proposals, best.makespan_ns)
            for best in other.bests[1:]
        )
        return Walk(
            other.splits,
            (*self.bests, *later),
            self.proposals + other.proposals,
            self.evaluated + other.evaluated,
            self.accepted + other.accepted,
            self.refused + other.refused,
            self.seconds + other.seconds,
            other.ending,
            (*self.recorded, *other.recorded),
        )


def metropolis(
    simulation: Simulated,
    splits: Sequence[Split],
    proposals: Proposals,
    limits: Limits,
    source: random.Random,
    *,
    temperature: float = TEMPERATURE,
    watch: Watch | None = None,
    record: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Walk:
    """Walk from strategy to strategy by the rule of Metropolis and Hastings, and keep the best.

    With a symmetric proposal S' of S, and t0 the time of the start, which makes the temperature free of units:

        accept S' with probability min(1, exp(-(t(S') - t(S)) / (temperature * t0)))

    Ctrl-C ends the walk, and what was best so far is returned.

    References:
        Hastings: Monte Carlo sampling methods using Markov chains and their applications, 1970. Jia, Zaharia, Aiken,
        2018, sections 6.1 and 6.2.
    """
    if not (math.isfinite(temperature) and temperature >= 0):
        raise SettingError(f"temperature must be finite and at least 0, got {temperature}; {TEMPERATURE} is usual")
    return _Walker(simulation, splits, proposals, limits, clock).walk(source, temperature, watch, record)


class _Walker:
    """A walk under way."""

    def __init__(
        self,
        simulation: Simulated,
        splits: Sequence[Split],
        proposals: Proposals,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._simulation, self._splits = simulation, list(splits)
        self._proposals, self._limits, self._clock = proposals, limits, clock
        self._start = clock()
        self._makespan = simulation.makespan_ns
        self._best = tuple(splits)
        self._bests = [Improvement(0.0, 0, self._makespan)]
        self._drawn = self._evaluated = self._accepted = self._refused = 0
        self._recorded: list[RecordedProposal] = []

    def walk(self, source: random.Random, temperature: float, watch: Watch | None, record: bool) -> Walk:
        scale = temperature * self._makespan
        told = -math.inf
        ending: Ending | None
        try:
            while (ending := self._ending()) is None:
                seconds = self._seconds()
                if watch is not None and seconds >= told + WATCH_S:
                    told = seconds
                    if not watch(seconds, self._drawn, self._bests[-1].makespan_ns):
                        raise KeyboardInterrupt
                self._step(source, scale, record)
        except KeyboardInterrupt:
            ending = "interrupted"
        return Walk(
            self._best,
            tuple(self._bests),
            self._drawn,
            self._evaluated,
            self._accepted,
            self._refused,
            self._seconds(),
            ending,
            tuple(self._recorded),
        )

    def _seconds(self) -> float:
        return self._clock() - self._start

    def _ending(self) -> Ending | None:
        best = self._bests[-1]
        return self._limits.ending(self._seconds(), self._drawn, best.seconds, best.proposals, len(self._splits))

    def _step(self, source: random.Random, scale: float, record: bool) -> None:
        self._drawn += 1
        changes = self._proposals.draw(self._splits)
        if not changes:
            return
        self._evaluated += 1
        # u < exp(-worse / scale), solved for the time: the simulator may stop beyond it.
        limit = self._makespan + math.floor(-scale * math.log(1 - source.random()))
        makespan = self._simulation.propose_changes(dict(changes), limit)
        self._refused += makespan is None
        is_accepted = makespan is not None and makespan <= limit
        if record:
            self._recorded.append(RecordedProposal(changes, limit, is_accepted))
        if makespan is None or not is_accepted:
            self._simulation.undo()
            return
        self._simulation.accept()
        self._accepted += 1
        self._makespan = makespan
        for operator, split in changes:
            self._splits[operator] = split
        if makespan < self._bests[-1].makespan_ns:
            self._best = tuple(self._splits)
            self._bests.append(Improvement(self._seconds(), self._drawn, makespan))


@dataclass(frozen=True)
class Alternative:
    """Another split of one operator."""

    operator: int
    split: Split
    makespan_ns: int | None  # what a step takes with it; None: it does not fit


@dataclass(frozen=True)
class Neighbours:
    """What trying all strategies that differ in one operator has shown."""

    makespan_ns: int
    tried: int
    refused: int  # how many of them do not fit
    best: Alternative | None  # the best one that is better than the strategy; None: none is

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
