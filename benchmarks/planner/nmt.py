"""How good the search for NMT is, by time: with both algorithms (Figure 12), and with several seeds on 64 devices."""

import random
from typing import Any

from benchmarks.planner.problems import problem_of
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.search.baselines import baseline
from bow.planning.search.metropolis import Improvement, Limits, metropolis
from bow.planning.search.proposals import SymmetricProposals
from bow.planning.search.search import search
from bow.planning.search.search_settings import SearchSettings
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.native_simulator import Algorithm
from bow.seeds import derive_seed

# Sixteen walks from one device, eight in each of two processes; the best one of each process goes on
STARTS = ("single",) * 16

POINTS = 60  # A curve has so many points at most


def best_over_time(
    graph: OperatorGraph, topology: DeviceTopology, algorithm: Algorithm, *, seconds: float, seed: int
) -> dict[str, Any]:
    """How the best time falls on a walk with the paper's proposals and those of families, from data parallelism.

    With the same seed walks with all algorithms are the same, only sooner or later.
    """
    problem = problem_of(graph, topology, algorithm)
    splits = baseline(problem, "data")
    space = SplitSpace(graph, problem.rules, topology.num_devices, including=[splits])
    source = random.Random(derive_seed(seed, 12))
    proposals = SymmetricProposals(space, graph, source)
    walk = metropolis(problem.simulation(splits), splits, proposals, Limits(seconds, patience=None), source)
    return {
        "algorithm": algorithm,
        "proposals": walk.evaluated,
        "found_ms": walk.makespan_ns / 1e6,
        "curve": [[round(each.seconds, 2), round(each.makespan_ns / 1e6, 3)] for each in _thinned(walk.bests)],
    }


def of_seed(
    graph: OperatorGraph, topology: DeviceTopology, *, seconds: float, seed: int, processes: int
) -> dict[str, Any]:
    """What a search with a seed finds."""
    settings = SearchSettings(budget_s=seconds, seed=seed, processes=processes, starts=STARTS)
    found = search(problem_of(graph, topology), settings)
    return {
        "seed": seed,
        "budget_s": seconds,
        "seconds": round(found.seconds, 1),
        "evaluated": found.evaluated,
        "found_ms": found.makespan_ns / 1e6,
    }


def _thinned(bests: tuple[Improvement, ...]) -> list[Improvement]:
    """The first, the last, and some in between."""
    step = max(1, -(-len(bests) // POINTS))
    return [*bests[:-1:step], bests[-1]]
