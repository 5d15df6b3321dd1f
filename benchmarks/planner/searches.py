"""What searches find: on the paper's clusters, by time and seed, and against proofs and neighbours."""

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.planner.problems import problem_of
from bow.errors import BowError, reason
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.search.baselines import baseline
from bow.planning.search.exhaustive import ExhaustiveSearch
from bow.planning.search.metropolis import Improvement, Limits, SearchSettings, descend, metropolis
from bow.planning.search.problem import Problem
from bow.planning.search.proposals import SymmetricProposals
from bow.planning.search.search import search
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.simulator.simulation import Algorithm
from bow.planning.simulator.step_model import TaskKind
from bow.seeds import derive_seed

CLUSTER_STARTS = ("data", "expert", "single", "single")  # What searches start from: the paper's, and one device


BASELINES = ("single", "data", "expert")


def compare_strategies(
    graph: OperatorGraph,
    topology: DeviceTopology,
    *,
    seconds: float,
    seed: int,
    with_optcnn: bool = False,
) -> tuple[dict[str, Any], tuple[Split, ...]]:
    """What a step takes with data parallelism, the experts' strategy, the one that is found, and OptCNN's."""
    problem = problem_of(graph, topology)
    rows = without_search(problem, (*BASELINES, *(("optcnn",) if with_optcnn else ())))
    starts = (*CLUSTER_STARTS, *(("optcnn",) if with_optcnn else ()))
    try:
        found = search(problem, SearchSettings(budget_s=seconds, seed=seed, starts=starts))
    except BowError as error:  # nothing that it may start from fits
        return {"devices": topology.num_devices, "strategies": {**rows, "found": {"refused": reason(error)}}}, ()
    rows["found"] = _described(problem.simulate(found.partition.splits))
    values = {
        "devices": topology.num_devices,
        "strategies": rows,
        "start": found.chain.start.name,
        "evaluated": found.evaluated,
        "search_s": round(found.seconds, 1),
    }
    return values, found.partition.splits


def with_passing(graph: OperatorGraph, topology: DeviceTopology, *, seconds: float, seed: int) -> dict[str, Any]:
    """Strategies where messages keep their order (fifo), and where they pass each other (passing)."""
    rows: dict[str, Any] = {}
    for name in ("fifo", "passing"):
        devices = replace(topology, passing=name == "passing")
        rows[name], _ = compare_strategies(graph, devices, seconds=seconds, seed=seed)
    return rows


def without_search(problem: Problem, names: Sequence[str] = BASELINES) -> dict[str, Any]:
    """By name: a strategy that needs no search, simulated, or why there is none."""
    rows: dict[str, Any] = {}
    for name in names:
        try:
            rows[name] = _described(problem.simulate(baseline(problem, name)))
        except BowError as error:
            rows[name] = {"refused": reason(error)}
    return rows


def _described(result: SimulationResult) -> dict[str, Any]:
    synchronised = sum(task.num_bytes for task in result.tasks if task.kind in (TaskKind.GATHER, TaskKind.REDUCTION))
    return {
        "step_ms": result.makespan_ns / 1e6,
        "sent_gb": result.communication_bytes / 1e9,
        "synchronised_gb": synchronised / 1e9,
        "task_ms": result.task_ns / 1e6,
        "refused": None if result.refusal is None else str(result.refusal),
    }


# Sixteen walks from one device, eight in each of two processes; the best one of each process goes on
WALKS = ("single",) * 16

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
    walk = metropolis(problem.simulation(splits), proposals, Limits(seconds, patience=None), source)
    return {
        "algorithm": algorithm,
        "proposals": walk.evaluated,
        "found_ms": walk.makespan_ns / 1e6,
        "curve": [[round(each.seconds, 2), round(each.makespan_ns / 1e6, 3)] for each in _thinned(walk.bests)],
    }


def of_seed(
    graph: OperatorGraph, topology: DeviceTopology, *, seconds: float, seed: int, processes: int
) -> dict[str, Any]:
    settings = SearchSettings(budget_s=seconds, seed=seed, processes=processes, starts=WALKS)
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


# What the search that is compared with the proof starts from; the best of all goes on
PROOF_STARTS = ("single", "data", "expert", "random", "random", "random")


def prove(
    graph: OperatorGraph, topology: DeviceTopology, *, search_s: float, proof_s: float, seed: int
) -> dict[str, Any]:
    """What the search finds, and what looking at all strategies shows about it.

    As in the paper, tiles of an operator have equal sizes; its devices are any, in any order, without repetition.
    """
    problem = problem_of(graph, topology)
    settings = SearchSettings(budget_s=search_s, patience=None, even=True, seed=seed, starts=PROOF_STARTS)
    found = search(problem, settings)
    splits = found.partition.splits
    space = SplitSpace(graph, problem.rules, topology.num_devices, even=True, including=[splits])
    simulation = problem.simulation(splits)
    proof = ExhaustiveSearch(simulation.model, space, simulation.evaluate, start=splits, budget_s=proof_s).run()
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
    bottom = descend(problem.simulation(splits), space, Limits(patience=1.0))
    again = descend(problem.simulation(bottom.splits), space, Limits(patience=1.0))
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
