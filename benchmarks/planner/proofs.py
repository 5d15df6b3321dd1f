"""Whether the search finds what is best, and what has no better neighbour (section 8.4)."""

import time
from typing import Any

from benchmarks.planner.problems import problem_of
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.search.baselines import baseline
from bow.planning.search.exhaustive import exhaustive
from bow.planning.search.metropolis import Limits, descend
from bow.planning.search.search import search
from bow.planning.search.search_settings import SearchSettings
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.simulation import IncrementalEvaluator

# What the search that is compared with the proof starts from; the best of all goes on
STARTS = ("single", "data", "expert", "random", "random", "random")


def prove(
    graph: OperatorGraph, topology: DeviceTopology, *, search_s: float, proof_s: float, seed: int
) -> dict[str, Any]:
    """What the search finds, and what looking at all strategies shows about it.

    As in the paper, tiles of an operator have equal sizes; its devices are any, in any order, without repetition.
    """
    problem = problem_of(graph, topology)
    settings = SearchSettings(budget_s=search_s, patience=None, even=True, seed=seed, starts=STARTS)
    found = search(problem, settings)
    splits = found.partition.splits
    space = SplitSpace(graph, problem.rules, topology.num_devices, even=True, including=[splits])
    simulation = problem.simulation(splits)
    proof = exhaustive(
        simulation.model, space, IncrementalEvaluator(simulation, splits), start=splits, budget_s=proof_s
    )
    return {
        "operators": len(graph.operators),
        "devices": topology.num_devices,
        "strategies": float(proof.partitions),
        "renamings": proof.symmetries,
        "search_ms": found.makespan_ns / 1e6,
        "search_s": round(found.seconds, 1),
        "searched": found.evaluated,
        "best_ms": proof.makespan_ns / 1e6,
        "bound_ms": proof.bound_ns / 1e6,
        "gap": proof.gap,
        "is_complete": proof.is_complete,
        "prefixes": proof.prefixes,
        "evaluated": proof.evaluated,
        "proof_s": round(proof.seconds, 1),
    }


def check_neighbours(graph: OperatorGraph, topology: DeviceTopology, *, search_s: float, seed: int) -> dict[str, Any]:
    """What the search finds, improved until no neighbour is better, and all of its neighbours anew.

    All three choose from the same splits: those of the search's own space, tiles of unequal sizes among them.
    """
    problem = problem_of(graph, topology)
    settings = SearchSettings(budget_s=search_s, seed=seed, starts=("single", "data"), descend=False)
    found = search(problem, settings)
    begun, splits = time.perf_counter(), found.partition.splits
    space = SplitSpace(
        graph,
        problem.rules,
        topology.num_devices,
        devices=settings.devices,
        even=settings.even,
        including=[*(baseline(problem, start) for start in settings.starts), splits],
    )
    bottom = descend(problem.simulation(splits), splits, space, Limits(patience=1.0))
    again = descend(problem.simulation(bottom.splits), bottom.splits, space, Limits(patience=1.0))
    return {
        "operators": len(graph.operators),
        "devices": topology.num_devices,
        "even": settings.even,
        "walk_ms": found.makespan_ns / 1e6,
        "found_ms": bottom.makespan_ns / 1e6,
        "improvements": bottom.accepted,
        "tried_on_the_way": bottom.evaluated,
        "neighbours": again.evaluated,
        "is_local_optimum": again.accepted == 0,
        "seconds": round(found.seconds + time.perf_counter() - begun, 1),
    }
