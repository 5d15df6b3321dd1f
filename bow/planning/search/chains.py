"""Run the walks of a search and divide its time among walks and processes."""

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
from bow.planning.search.metropolis import (
    DESCENT_FRACTION,
    Limits,
    ProgressCallback,
    SearchSettings,
    Walk,
    descend,
    metropolis,
)
from bow.planning.search.problem import Problem
from bow.planning.search.processes import Inbox, SearchProcess, Send
from bow.planning.search.proposals import CriticalOperators, GuidedProposals, Proposals, SymmetricProposals
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.simulation import Simulation
from bow.seeds import derive_seed


@dataclass(frozen=True)
class WalkStart:
    """A starting point of a walk."""

    name: str  # such as `data`
    number: int  # among all starts
    learners: int  # number of learners that share the devices
    splits: tuple[Split, ...]
    worth: float  # of a step, see `SearchSettings.worth`; walks are compared by time per worth


@dataclass(frozen=True)
class Chain:
    """A start and the walk from it, followed by the descent from the walk's best partition."""

    # The descent is greedy, or, if there is no time to try all neighbours, a walk at temperature 0.

    start: WalkStart
    walk: Walk | None  # None: the start does not fit
    refusal: str | None = None  # why the start does not fit; None: it does

    @property
    def is_interrupted(self) -> bool:
        return self.walk is not None and self.walk.ending == "interrupted"

    @property
    def sample_ns(self) -> float:
        """Step time over the step's worth."""
        return math.inf if self.walk is None else self.walk.makespan_ns / self.start.worth


SearchProgress: TypeAlias = Callable[[float, int, float], bool | None]
"""Called with seconds, proposals and the best time of a batch in ns; False ends the search, None does not."""

Report: TypeAlias = Callable[[int, int, float], bool]
"""Called with a start's number, proposals and the best time of a batch in ns; False ends the walk."""


class ProgressAggregator:
    """Aggregates the progress of all walks."""

    def __init__(self, progress: SearchProgress | None) -> None:
        self._progress, self._begun = progress, time.perf_counter()
        self._proposals: dict[int, int] = {}
        self._best_ns = math.inf

    def report(self, number: int, proposals: int, batch_ns: float) -> bool:
        """Record the progress of a walk; return False to end it."""
        self._proposals[number] = proposals
        self._best_ns = min(self._best_ns, batch_ns)
        if self._progress is None:
            return True
        answer = self._progress(time.perf_counter() - self._begun, sum(self._proposals.values()), self._best_ns)
        return answer is None or bool(answer)


def space_of(problem: Problem, starts: Sequence[WalkStart], settings: SearchSettings, learners: int) -> SplitSpace:
    return SplitSpace(
        problem.graph,
        problem.rules,
        problem.topology.num_devices // learners,
        devices=settings.devices,
        even=settings.even,
        including=[start.splits for start in starts if start.learners == learners],
    )


def run_chains(problem: Problem, starts: Sequence[WalkStart], settings: SearchSettings, report: Report) -> list[Chain]:
    """Walk from each start; continue from the best partition for the rest of the time."""
    # Successive halving: in each rung the better half continues, with the same total time as the rung before.
    walks = _Walks(problem, starts, settings, report)
    try:
        walks.run()
    except KeyboardInterrupt:
        if all(chain.walk is None for chain in walks.chains):
            raise
    return walks.chains


class _Walks:
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
        ends_s = [budget_s * settings.trial * rung / len(sizes) for rung in range(1, len(sizes) + 1)]
        self._begin(of_trial, ends_s[0])
        for rung in range(1, len(sizes)):
            numbers = self._best(sizes[rung])
            for place, number in enumerate(numbers):
                if self._seconds < ends_s[rung]:
                    self._continue(number, of_trial, self._share_s(ends_s[rung], len(numbers) - place), rung)
        for number in self._best(1):
            self._continue(number, settings, self._share_s(budget_s, 1), len(sizes))

    def _begin(self, settings: SearchSettings, end_s: float | None) -> None:
        for number, start in enumerate(self._starts):
            share_s = self._share_s(end_s, len(self._starts) - number)
            self.chains.append(self._run_walk(start, settings, share_s))
            if self.chains[-1].is_interrupted:
                raise KeyboardInterrupt

    def _continue(self, number: int, settings: SearchSettings, share_s: float | None, rung: int) -> None:
        """Continue a walk from its best partition."""
        start, first = self.chains[number].start, self.chains[number].walk
        assert first is not None
        found = self._run_walk(replace(start, splits=first.splits), settings, share_s, first.proposals, rung)
        assert found.walk is not None
        self.chains[number] = Chain(start, first.followed_by(found.walk))
        if found.is_interrupted:
            raise KeyboardInterrupt

    def _run_walk(
        self, start: WalkStart, settings: SearchSettings, share_s: float | None, before: int = 0, rung: int = 0
    ) -> Chain:
        def watch(_: float, proposals: int, best_ns: int) -> bool:
            return self._report(start.number, before + proposals, self._problem.batch_size * best_ns / start.worth)

        return run_chain(self._problem, start, self._spaces[start.learners], settings, share_s, watch, rung=rung)

    def _best(self, count: int) -> list[int]:
        walked = [number for number, chain in enumerate(self.chains) if chain.walk is not None]
        return sorted(walked, key=lambda number: self.chains[number].sample_ns)[:count]

    def _share_s(self, end_s: float | None, count: int) -> float | None:
        """Return each walk's share if this many walks divide the time until `end_s`."""
        return None if end_s is None else max((end_s - self._seconds) / count, math.ulp(1))

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._begun


def _rungs(num_starts: int) -> list[int]:
    """Return the number of walks in each rung; the last remaining walk is not counted as a rung."""
    return [] if num_starts <= 1 else [num_starts, *_rungs(-(-num_starts // 2))]


def run_chain(
    problem: Problem,
    start: WalkStart,
    space: SplitSpace,
    settings: SearchSettings,
    budget_s: float | None,
    watch: ProgressCallback,
    rung: int = 0,
) -> Chain:
    begun = time.perf_counter()
    source = random.Random(derive_seed(settings.seed, start.number, 2 * rung))
    try:
        simulation = problem.simulation(start.splits, start.learners)
    except ScheduleError as error:
        return Chain(start, None, refusal=str(error))
    share_s = None if budget_s is None else budget_s * (1 - DESCENT_FRACTION if settings.descend else 1)
    proposals = _proposals(simulation, space, settings, source)
    walk_s = None if share_s is None else max(share_s - (time.perf_counter() - begun), math.ulp(1))
    limits = Limits(walk_s, settings.proposals, settings.patience)
    walk = metropolis(simulation, proposals, limits, source, temperature=settings.temperature, watch=watch)
    if not settings.descend or walk.ending == "interrupted":
        return Chain(start, walk)

    def watch_descent(seconds: float, proposals: int, best_ns: int) -> bool:
        return watch(walk.seconds + seconds, walk.proposals + proposals, best_ns)

    left_s = None if budget_s is None else max(budget_s - (time.perf_counter() - begun), math.ulp(1))
    sweep_s = space.num_neighbours * walk.seconds / max(walk.evaluated, 1)  # to try every neighbour once
    try:
        best = problem.simulation(walk.splits, start.learners)
        if left_s is None or sweep_s <= left_s:
            descent = descend(best, space, Limits(left_s), watch=watch_descent)
        else:
            cold, proposals = Limits(left_s, patience=None), _proposals(best, space, settings, source)
            descent = metropolis(best, proposals, cold, source, temperature=0.0, watch=watch_descent)
    except KeyboardInterrupt:  # before the descent began
        return Chain(start, replace(walk, ending="interrupted"))
    return Chain(start, walk.followed_by(descent))


def _proposals(simulation: Simulation, space: SplitSpace, settings: SearchSettings, source: random.Random) -> Proposals:
    graph = simulation.model.graph
    if settings.moves == "guided":
        return GuidedProposals(space, graph, source, CriticalOperators(simulation, source).draw)
    return SymmetricProposals(space, graph, source, families=settings.moves == "symmetric")


def run_in_processes(
    problem: Problem, shares: Sequence[Sequence[WalkStart]], settings: SearchSettings, tally: ProgressAggregator
) -> list[Chain]:
    # Ctrl-C, or progress returning False, ends the walks, which still send their results; a second Ctrl-C aborts.
    messages: queue.Queue[tuple[SearchProcess, Any]] = queue.Queue()
    workers = [SearchProcess(messages) for _ in shares]
    chains: list[Chain] = []
    try:
        for worker, share in zip(workers, shares, strict=True):
            worker.begin(walk_and_send, problem, share, settings)
        running, should_continue = len(workers), True
        while running:
            was_asked = not should_continue
            try:
                _, message = messages.get()
                if message is None:
                    running -= 1
                elif isinstance(message, Chain):
                    chains.append(message)
                else:
                    should_continue = tally.report(*message) and should_continue
            except KeyboardInterrupt:
                if was_asked:
                    raise
                should_continue = False
            if not should_continue and not was_asked:
                for worker in workers:
                    worker.send(None)
        status = next(filter(None, [worker.end(None) for worker in workers]), 0)
    finally:
        for worker in workers:
            worker.end()
    if status and should_continue:  # a process ended very early may have been killed by Ctrl-C itself
        raise ScheduleError(f"a process of the search ended with status {status}; check its output")
    return sorted(chains, key=lambda chain: chain.start.number)


def walk_and_send(
    send: Send, inbox: Inbox, problem: Problem, starts: Sequence[WalkStart], settings: SearchSettings
) -> None:
    """Entry point of a search process: walk and send progress until a message arrives; then send the chains."""

    def report(number: int, proposals: int, batch_ns: float) -> bool:
        send((number, proposals, batch_ns))
        return inbox.empty()

    for chain in run_chains(problem, starts, settings, report):
        send(chain)
