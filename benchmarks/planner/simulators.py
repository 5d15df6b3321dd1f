"""Full and delta simulation of the same proposals (Table 4)."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from benchmarks.planner.problems import problem_of
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.search.baselines import baseline
from bow.planning.search.metropolis import Limits, metropolis
from bow.planning.search.proposals import SymmetricProposals
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.simulation import ALGORITHMS, Algorithm, Simulation
from bow.seeds import derive_seed

LEAST = 3  # So many proposals are replayed however long they take


def compare_simulators(
    graph: OperatorGraph, topology: DeviceTopology, *, recorded_s: float, replayed_s: float, seed: int
) -> dict[str, Any]:
    """A search with the paper's proposals, and how fast each algorithm replays what it proposed.

    The search starts from data parallelism and ends by the paper's rule: when half of its proposals have brought
    nothing. Every algorithm replays the same proposals, from the first one on, until its time is over, and accepts and
    undoes as the search did. Times are of those that all of them have replayed, without what splits need of rules and
    costs: a search works that out once.
    """
    problem = problem_of(graph, topology)
    splits = baseline(problem, "data")
    space = SplitSpace(graph, problem.rules, topology.num_devices, including=[splits])
    source = random.Random(derive_seed(seed, topology.num_devices))
    proposals = SymmetricProposals(space, graph, source, families=False)
    simulation = problem.simulation(splits)
    num_tasks = len(simulation.tasks())
    begun = time.perf_counter()

    def watch(seconds: float, _: int, __: int) -> bool:
        return seconds < recorded_s

    recording = Recording(simulation)
    walk = metropolis(cast(Simulation, recording), proposals, Limits(), source, watch=watch)
    seconds = time.perf_counter() - begun
    replays = {each: _replay(graph, topology, splits, recording.proposals, each, replayed_s) for each in ALGORITHMS}
    common = min(len(each.times) for each in replays.values())
    per_s = {name: common / sum(each.times[:common]) for name, each in replays.items()}
    looked_at = {name: round(sum(each.looked_at[:common]) / common) for name, each in replays.items()}
    return {
        "devices": topology.num_devices,
        "operators": len(graph.operators),
        "tasks": num_tasks,
        "proposals": walk.evaluated,
        "ended_by": walk.ending,
        "search_s": round(seconds, 2),
        "found_ms": walk.makespan_ns / 1e6,
        "start_ms": walk.bests[0].makespan_ns / 1e6,
        "replayed": common,
        "per_s": {each: round(rate, 2) for each, rate in per_s.items()},
        "looked_at": looked_at,
    }


@dataclass
class RecordedProposal:
    """A proposal, to be played again."""

    changes: dict[int, Split]
    limit_ns: int
    is_accepted: bool = False


class Recording:
    """A simulation that notes what is proposed to it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.proposals: list[RecordedProposal] = []

    @property
    def splits(self) -> tuple[Split, ...]:
        return self.simulation.splits

    @property
    def makespan_ns(self) -> int:
        return self.simulation.makespan_ns

    def propose_changes(self, changes: Mapping[int, Split], limit_ns: int | None = None) -> int | None:
        assert limit_ns is not None
        self.proposals.append(RecordedProposal(dict(changes), limit_ns))
        return self.simulation.propose_changes(changes, limit_ns)

    def accept(self) -> None:
        self.proposals[-1].is_accepted = True
        self.simulation.accept()

    def undo(self) -> None:
        self.simulation.undo()


@dataclass(frozen=True)
class _Replay:
    """By proposal: seconds, and how often tasks were looked at."""

    times: list[float]
    looked_at: list[int]


def _replay(
    graph: OperatorGraph,
    topology: DeviceTopology,
    splits: Sequence[Split],
    recorded: Sequence[RecordedProposal],
    algorithm: Algorithm,
    replayed_s: float,
) -> _Replay:
    simulation = problem_of(graph, topology, algorithm).simulation(splits)
    known = _prepare(simulation, recorded, replayed_s)
    replay = _Replay([], [])
    begun = last = time.perf_counter()
    for proposed in recorded[:known]:
        makespan = simulation.propose_changes(proposed.changes, proposed.limit_ns)
        if proposed.is_accepted:
            assert makespan is not None
            assert makespan <= proposed.limit_ns
            simulation.accept()
        else:
            simulation.undo()
        now = time.perf_counter()
        replay.times.append(now - last)
        replay.looked_at.append(simulation.num_looked_at)
        last = now
        if now - begun > replayed_s and len(replay.times) >= LEAST:
            break
    return replay


def _prepare(simulation: Simulation, recorded: Sequence[RecordedProposal], seconds: float) -> int:
    """Has what splits need of rules and costs worked out, once and for all algorithms alike; of how many proposals."""
    begun = time.perf_counter()
    for number, proposed in enumerate(recorded):
        simulation.propose_changes(proposed.changes, limit_ns=0)
        simulation.undo()
        if time.perf_counter() - begun > seconds and number + 1 >= LEAST:
            return number + 1
    return len(recorded)
