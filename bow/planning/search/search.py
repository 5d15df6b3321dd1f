"""The search for a fast strategy: walks from several starts, by several processes, for several numbers of learners."""

import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bow.errors import ScheduleError
from bow.files import save_text
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.partition import Partition
from bow.planning.problem.topology_files import topology_to_dict
from bow.planning.search.baselines import baseline, random_strategy
from bow.planning.search.chain_processes import run_in_processes
from bow.planning.search.chains import Chain, SearchProgress, Tally, WalkStart, run_chains, spaces_of
from bow.planning.search.explain import Explanation, explain
from bow.planning.search.metropolis import Improvement
from bow.planning.search.problem import Problem
from bow.planning.search.search_settings import SearchSettings
from bow.schedule import Timeline
from bow.seeds import derive_seed

PLANNED_FOR = "planned_for"  # key of what is in a strategy's file besides: `Partition.from_json` leaves it out


def partition_text(
    partition: Partition, makespan_ns: int, topology: DeviceTopology, settings: SearchSettings, **others: Any
) -> str:
    """A strategy as JSON, with what is needed to explain it."""
    planned_for = {
        **others,
        "makespan_ns": makespan_ns,
        "topology": topology_to_dict(topology),
        "even": settings.even,
        "device_lists": settings.devices,
    }
    return json.dumps({**json.loads(partition.to_json()), PLANNED_FOR: planned_for})


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        strategy: the fastest one.
        makespan_ns: of a step with it, in which each learner has a batch.
        chain: on which it was found.
        chains: all of them.
        seconds: that it took.
        problem: what was planned for.
        settings: of the search.
    """

    partition: Partition
    makespan_ns: int
    chain: Chain
    chains: tuple[Chain, ...]
    seconds: float
    problem: Problem = field(repr=False, compare=False)
    settings: SearchSettings = field(repr=False, compare=False)

    def explain(self, keep: int = 3, budget_s: float | None = None) -> Explanation:
        """What was chosen for every operator, what that costs, and what else would cost; printed, it is a table.

        What else is tried are the splits that the search has chosen from.

        Args:
            keep: how many other choices are kept for each operator.
            budget_s: no operator's other choices are looked at after so many seconds; None: all are.
        """
        begun = time.perf_counter()
        learners, starts = self.partition.learners, [chain.start for chain in self.chains]
        return explain(
            self.problem,
            self.partition.splits,
            learners,
            space=spaces_of(self.problem, starts, self.settings, (learners,))[learners],
            keep=keep,
            goes_on=lambda: budget_s is None or time.perf_counter() - begun < budget_s,
        )

    def timeline(self) -> Timeline:
        """When what runs where in a simulated step; `Timeline.save` writes it for Perfetto."""
        return self.problem.simulate(self.partition.splits, self.partition.learners).timeline

    def save(self, path: str | Path) -> None:
        """Write the strategy as JSON, which `bow.train(strategy=path)` reads, with the topology that it was found for.

        Args:
            path: of the file; folders that are missing are made.

        Raises:
            SettingError: it cannot be written.
        """
        text = partition_text(self.partition, self.makespan_ns, self.problem.topology, self.settings)
        save_text("the strategy", path, text)

    @property
    def batch_ns(self) -> float:
        """What a step takes for each learner's batch: by this strategies with different learners are compared."""
        return self.makespan_ns / self.partition.learners

    @property
    def evaluated(self) -> int:
        """How many strategies were simulated."""
        parts = (part for chain in self.chains for part in (chain.walk, chain.descent) if part is not None)
        return sum(part.evaluated for part in parts)

    @property
    def bests(self) -> tuple[Improvement, ...]:
        """How the best time of the chain on which it was found fell, the descent behind the walk."""
        walk, descent = self.chain.walk, self.chain.descent
        assert walk is not None
        return walk.bests if descent is None else walk.followed_by(descent).bests


def search(
    problem: Problem,
    settings: SearchSettings,
    progress: SearchProgress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Found:
    """Find a fast strategy.

    Ctrl-C ends the search, and the best strategy so far is returned, once there is one.

    References:
        Jia, Zaharia, Aiken, 2018, section 6.2.
    """
    begun = clock()
    starts = list(_starts(problem, settings))
    shares = [starts[number :: settings.processes] for number in range(settings.processes)]
    tally = Tally(progress, clock)
    if settings.processes > 1:
        chains = run_in_processes(problem, shares, settings, tally)
    else:
        chains = run_chains(problem, starts, settings, tally.told)
    chain = min(chains, key=lambda each: (each.batch_ns, each.start.number), default=None)
    if chain is None or chain.best is None:
        why = next((each.refusal for each in chains if each.refusal), "nothing was tried")
        raise ScheduleError(f"no strategy to start from fits: {why}")
    partition = problem.partition(chain.best.splits, chain.start.learners)
    return Found(partition, chain.best.makespan_ns, chain, tuple(chains), clock() - begun, problem, settings)


def _starts(problem: Problem, settings: SearchSettings) -> Iterator[WalkStart]:
    """A start of each name for each number of learners, and further ones until every process has one."""
    each = itertools.product(settings.learners, settings.starts)
    count = len(settings.learners) * len(settings.starts)
    for number, (learners, name) in enumerate(itertools.cycle(list(each))):
        if number >= max(count, settings.processes):
            return
        of_one = problem.of_one_learner(learners)
        if name == "random":
            (space,) = spaces_of(of_one, (), settings, (1,)).values()
            splits = random_strategy(of_one, space, random.Random(derive_seed(settings.seed, number, 1)))
        else:
            splits = baseline(of_one, name)
        yield WalkStart(name, number, learners, splits)
