"""Metropolis-Hastings search over partitions, its stopping rules, and greedy descent to a local optimum."""

import math
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from bow.errors import SettingError
from bow.planning.problem.partition import Split
from bow.planning.search.proposals import Proposals
from bow.planning.search.search_space import DeviceLists, SplitSpace
from bow.planning.simulator.simulation import Simulation
from bow.values import number, processes, whole, whole_seed

GRACE_PER_OPERATOR = 20  # proposals per operator before `patience` applies

Ending: TypeAlias = Literal["budget", "proposals", "no gain", "interrupted"]


@dataclass(frozen=True)
class Improvement:
    """A new best partition of a walk: time and number of proposals at which it was found."""

    seconds: float  # since the start of the walk
    proposals: int
    makespan_ns: int


@dataclass(frozen=True)
class Limits:
    """Stopping conditions of a walk; the first one that holds ends it."""

    budget_s: float | None = None  # None: no time limit
    proposals: int | None = None  # None: no limit
    # End when the best time has not improved during this fraction of the walk so far, measured in seconds, or in
    # proposals if there is no budget_s; None: disabled. The paper uses one half.
    patience: float | None = 0.5

    def __post_init__(self) -> None:
        if self.budget_s is None and self.proposals is None and self.patience is None:
            raise SettingError("a search without budget_s, proposals and patience never ends; set one of them")
        if self.budget_s is not None:
            number("budget_s", self.budget_s, above=0)
        if self.proposals is not None:
            whole("proposals", self.proposals, least=0)
        if self.patience is not None:
            number("patience", self.patience, above=0, most=1, remedy="the paper uses 0.5")

    def ending(self, seconds: float, proposals: int, best: Improvement, operators: int) -> Ending | None:
        if self.budget_s is not None and seconds >= self.budget_s:
            return "budget"
        if self.proposals is not None and proposals >= self.proposals:
            return "proposals"
        if self.patience is not None and proposals >= GRACE_PER_OPERATOR * operators:
            now, then = (proposals, best.proposals) if self.budget_s is None else (seconds, best.seconds)
            if now - then >= self.patience * now:
                return "no gain"
        return None


TEMPERATURE = 0.001  # slowing down by 0.1 % of the start's time is accepted with probability 1/e

# (seconds, proposals, best time in ns) -> False to end the walk
ProgressCallback: TypeAlias = Callable[[float, int, int], bool]
PROGRESS_INTERVAL_S = 0.1  # between calls of the callback


@dataclass(frozen=True)
class Walk:
    """Result of a walk."""

    splits: tuple[Split, ...]  # of the best partition, by operator
    bests: tuple[Improvement, ...]  # the start, then every new best
    proposals: int  # drawn, including those that change nothing
    evaluated: int  # simulated
    accepted: int
    refused: int  # rejected because they do not fit into memory
    seconds: float
    ending: Ending

    @property
    def makespan_ns(self) -> int:
        return self.bests[-1].makespan_ns

    def followed_by(self, other: "Walk") -> "Walk":
        """Concatenate with a walk that started from the best partition of this one."""
        later = (
            Improvement(self.seconds + best.seconds, self.proposals + best.proposals, best.makespan_ns)
            for best in other.bests[1:]
        )
        counted = ("proposals", "evaluated", "accepted", "refused", "seconds")
        sums = {name: getattr(self, name) + getattr(other, name) for name in counted}
        return replace(other, bests=(*self.bests, *later), **sums)


class _WalkState:
    def __init__(self, simulation: Simulation, clock: Callable[[], float]) -> None:
        self.simulation = simulation
        self._clock, self._start = clock, clock()
        self._best = simulation.splits
        self._bests = [Improvement(0.0, 0, simulation.makespan_ns)]
        self.proposals = self.evaluated = self.accepted = self.refused = 0

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    @property
    def best(self) -> Improvement:
        return self._bests[-1]

    def accept(self, makespan: int) -> None:
        self.simulation.accept()
        self.accepted += 1
        if makespan < self.best.makespan_ns:
            self._best = self.simulation.splits
            self._bests.append(Improvement(self.seconds, self.proposals, makespan))

    def to_walk(self, ending: Ending) -> Walk:
        counts = self.proposals, self.evaluated, self.accepted, self.refused
        return Walk(self._best, tuple(self._bests), *counts, self.seconds, ending)


def metropolis(
    simulation: Simulation,
    proposals: Proposals,
    limits: Limits,
    source: random.Random,
    *,
    temperature: float = TEMPERATURE,
    watch: ProgressCallback | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Walk:
    state = _WalkState(simulation, clock)
    scale = temperature * simulation.makespan_ns
    operators, reported = len(simulation.splits), -math.inf
    try:
        while (ending := limits.ending(state.seconds, state.proposals, state.best, operators)) is None:
            seconds = state.seconds
            if watch is not None and seconds >= reported + PROGRESS_INTERVAL_S:
                reported = seconds
                if not watch(seconds, state.proposals, state.best.makespan_ns):
                    return state.to_walk("interrupted")
            _step(state, proposals, source, scale)
    except KeyboardInterrupt:
        return state.to_walk("interrupted")
    return state.to_walk(ending)


def _step(state: _WalkState, proposals: Proposals, source: random.Random, scale: float) -> None:
    simulation = state.simulation
    state.proposals += 1
    changes = proposals.draw(simulation.splits)
    if not changes:
        return
    state.evaluated += 1
    # Accept if u < exp(-slowdown / scale), solved for the makespan so that the simulator can stop beyond the limit.
    limit = simulation.makespan_ns + math.floor(-scale * math.log(1 - source.random()))
    makespan = simulation.propose_changes(dict(changes), limit)
    state.refused += makespan is None
    if makespan is None or makespan > limit:
        simulation.undo()
    else:
        state.accept(makespan)


def descend(
    simulation: Simulation,
    space: SplitSpace,
    limits: Limits,
    *,
    watch: ProgressCallback | None = None,
) -> Walk:
    """Give each operator in turn its best split until no neighbour is faster: a local optimum."""
    state = _WalkState(simulation, time.perf_counter)
    operator, unchanged, operators = 0, 0, len(simulation.splits)
    try:
        while unchanged < operators:
            if watch is not None and not watch(state.seconds, state.proposals, state.best.makespan_ns):
                return state.to_walk("interrupted")
            if limits.budget_s is not None and state.seconds >= limits.budget_s:
                return state.to_walk("budget")
            if limits.proposals is not None and state.proposals >= limits.proposals:
                return state.to_walk("proposals")
            unchanged = 0 if _improve(state, space, operator) else unchanged + 1
            operator = (operator + 1) % operators
    except KeyboardInterrupt:
        return state.to_walk("interrupted")
    return state.to_walk("no gain")


def _improve(state: _WalkState, space: SplitSpace, operator: int) -> bool:
    """Apply an operator's best split; return whether it changed."""
    simulation = state.simulation
    lowest, better, old = simulation.makespan_ns, None, simulation.splits[operator]
    for split in space.splits(operator):
        if split == old:
            continue
        state.proposals += 1
        state.evaluated += 1
        makespan = simulation.propose_changes({operator: split}, lowest - 1)
        simulation.undo()
        state.refused += makespan is None
        if makespan is not None and makespan < lowest:
            lowest, better = makespan, split
    if better is None:
        return False
    simulation.propose_changes({operator: better})
    state.accept(lowest)
    return True


Moves: TypeAlias = Literal["paper", "symmetric", "guided"]  # proposal distributions, see `SearchSettings`

MOVES: tuple[Moves, ...] = ("paper", "symmetric", "guided")
STARTS = ("data", "expert", "random", "model", "single", "optcnn")  # starting points of walks
DESCENT_FRACTION = 0.3  # fraction of a walk's budget reserved for the descent from its best partition


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the partition search.

    Attributes:
        budget_s: total time in seconds; None: walks end by `patience` or `proposals`.
        proposals: per walk; None: unlimited.
        patience: end a walk when nothing better was found during this fraction of it; None: never. Trials ignore it.
        temperature: a partition slower by this fraction of the start's time is accepted with probability 1/e.
        starts: starting points: one walk for each of them and each number of learners. Names may repeat; a single name
            may be passed as a string.
        trial: fraction of its time that a process with several walks spends on successive halving (after each rung the
            better half continues); the best walk gets the rest. With 0, or with `proposals`, all walks share the time
            equally, as in the paper.
        learners: candidate numbers of learners, or one number. The devices are divided into this many groups of equal
            size, one per learner.
        noise_scale: gradient noise scale of the training, in samples. Numbers of learners are then compared by time to
            accuracy instead of time per batch, see `worth`; None: all samples count the same.
        seed: of all random numbers.
        processes: number of processes that walk in parallel.
        devices: candidate device lists, see `SplitSpace`.
        even: allow only tiles of equal size.
        moves: `"paper"`: any operator gets any split; `"symmetric"`: also changes whole families of similar operators,
            with symmetric proposal probabilities; `"guided"`: heuristic proposals, see `GuidedProposals`.
        descend: improve the best partitions until no neighbour is faster or the budget is spent.

    Raises:
        SettingError: a value outside its range.
    """

    budget_s: float | None = 30.0
    proposals: int | None = None
    patience: float | None = 0.5
    temperature: float = TEMPERATURE
    starts: tuple[str, ...] = ("data", "expert", "single", "random")
    trial: float = 0.4
    learners: tuple[int, ...] = (1,)
    noise_scale: float | None = None
    seed: int = 0
    processes: int = 1
    devices: DeviceLists = "auto"
    even: bool = False
    moves: Moves = "guided"
    descend: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", _listed(self.starts))
        object.__setattr__(self, "learners", _listed(self.learners))
        unknown = next((start for start in self.starts if start not in STARTS), None)
        if unknown is not None or not self.starts:
            raise SettingError(f"starts must be among {', '.join(STARTS)}, got {unknown if self.starts else 'none'}")
        if self.moves not in MOVES:
            raise SettingError(f"moves must be one of {', '.join(MOVES)}, got {self.moves!r}")
        if self.devices not in get_args(DeviceLists):
            raise SettingError(f"devices must be one of {', '.join(get_args(DeviceLists))}, got {self.devices!r}")
        if not isinstance(self.even, bool):
            raise SettingError(f"even must be true or false, got {self.even!r}")
        Limits(self.budget_s, self.proposals, self.patience)
        number("temperature", self.temperature, least=0, remedy=f"{TEMPERATURE} is usual")
        number("trial", self.trial, least=0, below=1, remedy="0.4 is usual")
        if not self.learners:
            raise SettingError("learners must list numbers of at least 1, got none")
        object.__setattr__(self, "learners", tuple(whole("learners", count) for count in self.learners))
        if self.noise_scale is not None:
            number("noise_scale", self.noise_scale, above=0, also="None if all samples count the same")
        processes("processes", self.processes, os.cpu_count() or 1)
        object.__setattr__(self, "seed", whole_seed(self.seed))

    def worth(self, batch_size: int, learners: int) -> float:
        """Return the progress of one step of all learners, in samples processed one by one."""
        # With noise scale `phi`, a batch of `B` samples is worth `B / (1 + B / phi)`: McCandlish et al., An Empirical
        # Model of Large-Batch Training, 2018, equation 2.7.
        together = batch_size * learners
        return together if self.noise_scale is None else together / (1 + together / self.noise_scale)


def _listed(values: Any) -> tuple[Any, ...]:
    """Return an iterable as a tuple, and any other value as a tuple of one."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)
