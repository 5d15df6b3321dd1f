"""The random walk through partitions that prefers fast ones, when it ends, and the descent to a local optimum."""

import math
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from bow.errors import SettingError
from bow.planning.problem.partition import Split
from bow.planning.search.proposals import Proposals
from bow.planning.search.search_space import DeviceLists, SplitSpace
from bow.planning.simulator.simulation import Simulation
from bow.values import number, processes, whole, whole_seed

GRACE = 20  # no walk ends for want of success before so many proposals for each operator

Ending: TypeAlias = Literal["budget", "proposals", "no gain", "interrupted"]


@dataclass(frozen=True)
class Improvement:
    """When a partition was found that is better than all before."""

    seconds: float  # since the start of the walk
    proposals: int
    makespan_ns: int


@dataclass(frozen=True)
class Limits:
    """When a walk ends; whatever comes first."""

    budget_s: float | None = None  # after so many seconds; None: never for that
    proposals: int | None = None  # after so many proposals; None: never for that
    # when the best has not got better for this part of the walk, in seconds, or in proposals where there is no budget
    # in seconds; None: never for that. The paper has a half
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

    def ending(self, seconds: float, proposals: int, best: Improvement, operators: int) -> Ending | None:
        """Why a walk ends now; None: it goes on."""
        if self.budget_s is not None and seconds >= self.budget_s:
            return "budget"
        if self.proposals is not None and proposals >= self.proposals:
            return "proposals"
        grace = GRACE * operators if self.grace is None else self.grace
        if self.patience is not None and proposals >= grace:
            now, then = (proposals, best.proposals) if self.budget_s is None else (seconds, best.seconds)
            if now - then >= self.patience * now:
                return "no gain"
        return None


TEMPERATURE = 0.001  # a partition that is slower by a thousandth of the start's time is accepted with probability 1/e

Watch: TypeAlias = Callable[[float, int, int], bool]
"""Called with seconds, proposals and the best time in nanoseconds; False ends the walk."""

WATCH_S = 0.1  # seconds between calls of a watch


@dataclass(frozen=True)
class Walk:
    """What a walk found."""

    splits: tuple[Split, ...]  # by operator, of the best partition
    bests: tuple[Improvement, ...]  # the start, and every partition that was better than all before
    proposals: int  # how many were drawn; some of them leave the partition as it is
    evaluated: int  # how many were simulated
    accepted: int
    refused: int  # how many of them did not fit
    seconds: float
    ending: Ending

    @property
    def makespan_ns(self) -> int:
        return self.bests[-1].makespan_ns

    def followed_by(self, other: "Walk") -> "Walk":
        """Both as one; the other one began where this one found its best partition."""
        later = (
            Improvement(self.seconds + best.seconds, self.proposals + best.proposals, best.makespan_ns)
            for best in other.bests[1:]
        )
        counted = ("proposals", "evaluated", "accepted", "refused", "seconds")
        sums = {name: getattr(self, name) + getattr(other, name) for name in counted}
        return replace(other, bests=(*self.bests, *later), **sums)


class _Course:
    """A walk or a descent under way."""

    def __init__(self, simulation: Simulation, splits: Sequence[Split], clock: Callable[[], float]) -> None:
        self.splits = list(splits)
        self.makespan = simulation.makespan_ns
        self._clock, self._start = clock, clock()
        self._best = tuple(splits)
        self._bests = [Improvement(0.0, 0, self.makespan)]
        self.proposals = self.evaluated = self.accepted = self.refused = 0

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    @property
    def best(self) -> Improvement:
        return self._bests[-1]

    def took(self, changes: Iterable[tuple[int, Split]], makespan: int) -> None:
        self.accepted += 1
        self.makespan = makespan
        for operator, split in changes:
            self.splits[operator] = split
        if makespan < self.best.makespan_ns:
            self._best = tuple(self.splits)
            self._bests.append(Improvement(self.seconds, self.proposals, makespan))

    def ended(self, ending: Ending) -> Walk:
        counts = self.proposals, self.evaluated, self.accepted, self.refused
        return Walk(self._best, tuple(self._bests), *counts, self.seconds, ending)


def metropolis(
    simulation: Simulation,
    splits: Sequence[Split],
    proposals: Proposals,
    limits: Limits,
    source: random.Random,
    *,
    temperature: float = TEMPERATURE,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Walk:
    """Walk from partition to partition by the rule of Metropolis and Hastings, and keep the best."""
    course = _Course(simulation, splits, clock)
    scale = temperature * course.makespan
    reported = -math.inf
    try:
        while (ending := limits.ending(course.seconds, course.proposals, course.best, len(splits))) is None:
            seconds = course.seconds
            if watch is not None and seconds >= reported + WATCH_S:
                reported = seconds
                if not watch(seconds, course.proposals, course.best.makespan_ns):
                    return course.ended("interrupted")
            _step(course, simulation, proposals, source, scale)
    except KeyboardInterrupt:
        return course.ended("interrupted")
    return course.ended(ending)


def _step(course: _Course, simulation: Simulation, proposals: Proposals, source: random.Random, scale: float) -> None:
    course.proposals += 1
    changes = proposals.draw(course.splits)
    if not changes:
        return
    course.evaluated += 1
    # u < exp(-worse / scale), solved for the time: the simulator may stop beyond it.
    limit = course.makespan + math.floor(-scale * math.log(1 - source.random()))
    makespan = simulation.propose_changes(dict(changes), limit)
    course.refused += makespan is None
    if makespan is None or makespan > limit:
        simulation.undo()
    else:
        simulation.accept()
        course.took(changes, makespan)


def descend(
    simulation: Simulation,
    splits: Sequence[Split],
    space: SplitSpace,
    limits: Limits,
    *,
    watch: Watch | None = None,
) -> Walk:
    """Give operators their best split, round and round, until no neighbour is better: a local optimum."""
    course = _Course(simulation, splits, time.perf_counter)
    operator, unchanged = 0, 0
    try:
        while unchanged < len(splits):
            if watch is not None and not watch(course.seconds, course.proposals, course.best.makespan_ns):
                return course.ended("interrupted")
            if limits.budget_s is not None and course.seconds >= limits.budget_s:
                return course.ended("budget")
            if limits.proposals is not None and course.proposals >= limits.proposals:
                return course.ended("proposals")
            unchanged = 0 if _improve(course, simulation, space, operator) else unchanged + 1
            operator = (operator + 1) % len(splits)
    except KeyboardInterrupt:
        return course.ended("interrupted")
    return course.ended("no gain")


def _improve(course: _Course, simulation: Simulation, space: SplitSpace, operator: int) -> bool:
    """Take an operator's best split; whether it is another one."""
    lowest, better, old = course.makespan, None, course.splits[operator]
    for split in space.splits(operator):
        if split == old:
            continue
        course.proposals += 1
        course.evaluated += 1
        makespan = simulation.propose_changes({operator: split}, lowest - 1)
        simulation.undo()
        course.refused += makespan is None
        if makespan is not None and makespan < lowest:
            lowest, better = makespan, split
    if better is None:
        return False
    simulation.propose_changes({operator: better})
    simulation.accept()
    course.took([(operator, better)], lowest)
    return True


Moves: TypeAlias = Literal["paper", "symmetric", "guided"]  # what walks change next

MOVES: tuple[Moves, ...] = ("paper", "symmetric", "guided")
STARTS = ("data", "expert", "random", "model", "single", "optcnn")  # what a walk may start from
DESCENT = 0.3  # this part of a budget is kept for going down from the best partition of each walk


@dataclass(frozen=True)
class SearchSettings:
    """How partitions are searched for.

    Attributes:
        budget_s: seconds in all; None: walks end by their patience or number of proposals.
        proposals: of each walk; None: as many as there is time for.
        patience: a walk ends when nothing better was found for this part of it; None: it does not. Trials have none.
        temperature: see `metropolis`.
        starts: what walks start from: one walk for each and each number of learners; a name may stand several times,
            or one name alone.
        trial: a process with several walks divides this part of its time among them, in rungs after each of which
            the better half goes on, and goes on from the best partition for the rest; 0, or with `proposals`: all is
            divided among them, as in the paper.
        learners: numbers of learners to choose from, or one number: so many groups of equal size are made of the
            devices, one for each learner.
        noise_scale: of the training's gradients, in samples: numbers of learners are then compared by the time to an
            accuracy, and not by that of a batch, see `worth`; None: all samples are worth the same.
        seed: of all random numbers.
        processes: that walk at the same time.
        devices: which lists of devices are tried, see `SplitSpace`.
        even: tiles must have equal sizes.
        moves: `"paper"`: any operator gets any split; `"symmetric"`: families of operators that are alike, too, as
            likely forth as back; `"guided"`: guesses at what could be better, see `GuidedProposals`.
        descend: whether the best partitions are improved until no neighbour is better or the budget is spent.

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
            raise SettingError(f"starts must be of {', '.join(STARTS)}, got {unknown if self.starts else 'none'}")
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
            number("noise_scale", self.noise_scale, above=0, also="None for samples that are all worth the same")
        processes("processes", self.processes, os.cpu_count() or 1)
        object.__setattr__(self, "seed", whole_seed(self.seed))

    def worth(self, batch_size: int, learners: int) -> float:
        """How many samples of a batch of one it takes to come as far as by a step of learners with a batch each.

        With noise scale `phi`, a batch `B` of all learners together comes as far as `B / (1 + B / phi)`
        (McCandlish et al., An Empirical Model of Large-Batch Training, 2018, equation 2.7).
        """
        together = batch_size * learners
        return together if self.noise_scale is None else together / (1 + together / self.noise_scale)


def _listed(values: Any) -> tuple[Any, ...]:
    """Several values, or one alone, as several."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)
