"""Walks from one start each, and how a search shares them out among its processes."""

from __future__ import annotations

import math
import queue
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from bow.errors import ScheduleError
from bow.planning.problem.partition import Split
from bow.planning.search.metropolis import DESCENT, Limits, SearchSettings, Walk, Watch, descend, metropolis
from bow.planning.search.problem import Problem
from bow.planning.search.processes import Inbox, SearchProcess, Send
from bow.planning.search.proposals import CriticalOperators, GuidedProposals, Proposals, SymmetricProposals
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.simulation import Simulation
from bow.seeds import derive_seed


@dataclass(frozen=True)
class WalkStart:
    """Where a walk starts."""

    name: str  # such as `data`
    number: int  # of all starts
    learners: int  # how many share the devices
    splits: tuple[Split, ...]
    worth: float  # of a step with so many, by which walks are compared: `SearchSettings.worth`


@dataclass(frozen=True)
class Chain:
    """A walk from a start, and the way down from the best partition on it."""

    start: WalkStart  # where it started
    walk: Walk | None  # what was found at random
    # what was found from there: by trying neighbours, or where there was no time to try all of them, by a walk on which
    # nothing slower is accepted; None where that was not looked for
    descent: Walk | None = None
    refusal: str | None = None  # why there was no walk: the start does not fit; None where there was

    @property
    def best(self) -> Walk | None:
        """The part with the better partition."""
        return self.descent if self.descent is not None else self.walk

    @property
    def is_interrupted(self) -> bool:
        return self.best is not None and self.best.ending == "interrupted"

    @property
    def sample_ns(self) -> float:
        """What a step takes for what it is worth."""
        return math.inf if self.best is None else self.best.makespan_ns / self.start.worth


SearchProgress: TypeAlias = Callable[[float, int, float], bool | None]
"""Called with seconds, proposals and the best time of a batch in nanoseconds; False ends the search, None does not."""

Report: TypeAlias = Callable[[int, int, float], bool]
"""Called with a start's number, proposals and the best time of a batch; False ends the walk."""


class Tally:
    """Adds up how the walks of a search go."""

    def __init__(self, progress: SearchProgress | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._progress, self._clock, self._begun = progress, clock, clock()
        self._proposals: dict[int, int] = {}
        self._best_ns = math.inf

    def report(self, number: int, proposals: int, batch_ns: float) -> bool:
        """One of the walks goes so; False: it shall end."""
        self._proposals[number] = proposals
        self._best_ns = min(self._best_ns, batch_ns)
        if self._progress is None:
            return True
        answer = self._progress(self._clock() - self._begun, sum(self._proposals.values()), self._best_ns)
        return answer is None or bool(answer)


def space_of(problem: Problem, starts: Sequence[WalkStart], settings: SearchSettings, learners: int) -> SplitSpace:
    """The splits to choose from with so many learners, those of the starts among them."""
    return SplitSpace(
        problem.graph,
        problem.rules,
        problem.topology.num_devices // learners,
        devices=settings.devices,
        even=settings.even,
        including=[start.splits for start in starts if start.learners == learners],
    )


def run_chains(problem: Problem, starts: Sequence[WalkStart], settings: SearchSettings, report: Report) -> list[Chain]:
    """Walk from each start for a part of the time, and on from the best partition for the rest of it."""
    # Successive halving: in each rung the better half goes on, for as long together as all of the rung before.
    walks = _Walks(problem, starts, settings, report)
    try:
        walks.run()
    except KeyboardInterrupt:
        if all(chain.walk is None for chain in walks.chains):
            raise
    return walks.chains


class _Walks:
    """The walks of a process, and how they share its time."""

    def __init__(self, problem: Problem, starts: Sequence[WalkStart], settings: SearchSettings, report: Report) -> None:
        self._begun = time.perf_counter()
        self._problem, self._starts, self._settings, self._report = problem, starts, settings, report
        learners = {start.learners for start in starts}
        self._spaces = {count: space_of(problem, starts, settings, count) for count in learners}
        self.chains: list[Chain] = []

    def run(self) -> None:
        settings, budget_s = self._settings, self._settings.budget_s
        if budget_s is None or settings.proposals is not None or settings.trial == 0 or len(self._starts) == 1:
            self._begin(settings, budget_s)
            return
        sizes = _rungs(len(self._starts))
        of_trial = replace(settings, patience=None, descend=False)
        ends_s = [budget_s * settings.trial * turn / len(sizes) for turn in range(1, len(sizes) + 1)]
        self._begin(of_trial, ends_s[0])
        for turn in range(1, len(sizes)):
            numbers = self._best(sizes[turn])
            for place, number in enumerate(numbers):
                if self._seconds < ends_s[turn]:
                    self._go_on(number, of_trial, self._share_s(ends_s[turn], len(numbers) - place), turn)
        for number in self._best(1):
            self._go_on(number, settings, self._share_s(budget_s, 1), len(sizes))

    def _begin(self, settings: SearchSettings, end_s: float | None) -> None:
        for number, start in enumerate(self._starts):
            share_s = self._share_s(end_s, len(self._starts) - number)
            self.chains.append(self._walked(start, settings, share_s))
            if self.chains[-1].is_interrupted:
                raise KeyboardInterrupt

    def _go_on(self, number: int, settings: SearchSettings, share_s: float | None, turn: int) -> None:
        """Walk on from the best partition of a walk, for so many seconds."""
        start, first = self.chains[number].start, self.chains[number].walk
        assert first is not None
        found = self._walked(replace(start, splits=first.splits), settings, share_s, first.proposals, turn)
        assert found.walk is not None
        self.chains[number] = Chain(start, first.followed_by(found.walk), found.descent)
        if found.is_interrupted:
            raise KeyboardInterrupt

    def _walked(
        self, start: WalkStart, settings: SearchSettings, share_s: float | None, before: int = 0, turn: int = 0
    ) -> Chain:
        def watch(_: float, proposals: int, best_ns: int) -> bool:
            return self._report(start.number, before + proposals, self._problem.batch_size * best_ns / start.worth)

        return run_chain(self._problem, start, self._spaces[start.learners], settings, share_s, watch, turn=turn)

    def _best(self, count: int) -> list[int]:
        walked = [number for number, chain in enumerate(self.chains) if chain.walk is not None]
        return sorted(walked, key=lambda number: self.chains[number].sample_ns)[:count]

    def _share_s(self, end_s: float | None, count: int) -> float | None:
        """What each of so many has of the time until then."""
        return None if end_s is None else max((end_s - self._seconds) / count, math.ulp(1))

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._begun


def _rungs(num_starts: int) -> list[int]:
    """Of how many walks each rung consists, before the last one goes on alone."""
    return [] if num_starts <= 1 else [num_starts, *_rungs(-(-num_starts // 2))]


def run_chain(
    problem: Problem,
    start: WalkStart,
    space: SplitSpace,
    settings: SearchSettings,
    budget_s: float | None,
    watch: Watch,
    turn: int = 0,
) -> Chain:
    """Walk from a start, and go down from the best partition on the way."""
    begun = time.perf_counter()
    source = random.Random(derive_seed(settings.seed, start.number, 2 * turn))
    try:
        simulation = problem.simulation(start.splits, start.learners)
    except ScheduleError as error:
        return Chain(start, None, refusal=str(error))
    share_s = None if budget_s is None else budget_s * (1 - DESCENT if settings.descend else 1)
    proposals = _proposals(simulation, space, settings, source)
    walk_s = None if share_s is None else max(share_s - (time.perf_counter() - begun), math.ulp(1))
    limits = Limits(walk_s, settings.proposals, settings.patience)
    walk = metropolis(
        simulation, start.splits, proposals, limits, source, temperature=settings.temperature, watch=watch
    )
    if not settings.descend or walk.ending == "interrupted":
        return Chain(start, walk)

    def watch_descent(seconds: float, proposals: int, best_ns: int) -> bool:
        return watch(walk.seconds + seconds, walk.proposals + proposals, best_ns)

    left_s = None if budget_s is None else max(budget_s - (time.perf_counter() - begun), math.ulp(1))
    best = problem.simulation(walk.splits, start.learners)
    sweep_s = space.num_neighbours * walk.seconds / max(walk.evaluated, 1)  # to try every neighbour once
    if left_s is None or sweep_s <= left_s:
        return Chain(start, walk, descend(best, walk.splits, space, Limits(left_s), watch=watch_descent))
    cold = Limits(left_s, patience=None)
    proposals = _proposals(best, space, settings, source)
    return Chain(
        start, walk, metropolis(best, walk.splits, proposals, cold, source, temperature=0.0, watch=watch_descent)
    )


def _proposals(simulation: Simulation, space: SplitSpace, settings: SearchSettings, source: random.Random) -> Proposals:
    graph = simulation.model.graph
    if settings.moves == "guided":
        return GuidedProposals(space, graph, source, CriticalOperators(simulation, source).draw)
    return SymmetricProposals(space, graph, source, families=settings.moves == "symmetric")


def run_in_processes(
    problem: Problem, shares: Sequence[Sequence[WalkStart]], settings: SearchSettings, tally: Tally
) -> list[Chain]:
    """Walk from several starts, each process from its share of them."""
    # Ctrl-C, or a progress that returns False, ends all walks, which still send what they found; again, it ends them.
    messages: queue.Queue[tuple[SearchProcess, Any]] = queue.Queue()
    workers = [SearchProcess(messages) for _ in shares]
    chains: list[Chain] = []
    try:
        for worker, share in zip(workers, shares, strict=True):
            worker.begin(walk_and_send, problem, share, settings)
        running, goes_on = len(workers), True
        while running:
            was_asked = not goes_on
            try:
                _, message = messages.get()
                if message is None:
                    running -= 1
                elif isinstance(message, Chain):
                    chains.append(message)
                else:
                    goes_on = tally.report(*message) and goes_on
            except KeyboardInterrupt:
                if was_asked:
                    raise
                goes_on = False
            if not goes_on and not was_asked:
                for worker in workers:
                    worker.send(None)
        status = next(filter(None, [worker.end(None) for worker in workers]), 0)
    finally:
        for worker in workers:
            worker.end()
    if status and goes_on:  # one that was to end very early may have been ended by Ctrl-C itself
        raise ScheduleError(f"a process of the search ended with status {status}; see what it printed")
    return sorted(chains, key=lambda chain: chain.start.number)


def walk_and_send(
    send: Send, inbox: Inbox, problem: Problem, starts: Sequence[WalkStart], settings: SearchSettings
) -> None:
    """In a process of its own: walk, and send how it goes, until something comes, and then what was found."""

    def report(number: int, proposals: int, batch_ns: float) -> bool:
        send((number, proposals, batch_ns))
        return inbox.empty()

    for chain in run_chains(problem, starts, settings, report):
        send(chain)
