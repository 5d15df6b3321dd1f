"""The random walk through strategies that prefers fast ones, and when it ends."""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bow.errors import SettingError
from bow.planning.problem.split import Split
from bow.planning.search.limits import Ending, Limits
from bow.planning.search.proposals import Changes, Proposals
from bow.planning.simulator.simulated import Simulated

TEMPERATURE = 0.001
"""A strategy that is slower by a thousandth of the start's time is accepted with probability 1/e."""

Watch: TypeAlias = Callable[[float, int, int], bool]
"""Is told seconds, proposals and the best time in nanoseconds; False ends the walk."""

WATCH_S = 0.1
"""So often who watches a walk is told how it goes."""


@dataclass(frozen=True)
class Improvement:
    """When a strategy was found that is better than all before.

    Attributes:
        seconds: since the start of the walk.
        proposals: since then.
        makespan_ns: of a step.
    """

    seconds: float
    proposals: int
    makespan_ns: int


@dataclass(frozen=True)
class RecordedProposal:
    """A proposal as it was, to be played again.

    Attributes:
        changes: operators and their new splits.
        limit_ns: up to which time it is accepted.
        is_accepted: what became of it.
    """

    changes: Changes
    limit_ns: int
    is_accepted: bool


@dataclass(frozen=True)
class Walk:
    """What a walk found.

    Attributes:
        splits: by operator, of the best strategy.
        bests: the start, and every strategy that was better than all before.
        proposals: how many were drawn; some of them leave the strategy as it is.
        evaluated: how many were simulated.
        accepted: how many of them were accepted.
        refused: how many of them did not fit.
        seconds: that it took.
        ending: why it ended.
        recorded: every proposal that was simulated, where asked for.
    """

    splits: tuple[Split, ...]
    bests: tuple[Improvement, ...]
    proposals: int
    evaluated: int
    accepted: int
    refused: int
    seconds: float
    ending: Ending
    recorded: tuple[RecordedProposal, ...] = ()

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
