"""Strategies on the paper's clusters: found, data parallel, expert, OptCNN (Figures 7, 8, 10b, 13 and 14)."""

from collections.abc import Sequence
from typing import Any

from benchmarks.planner.problems import problem_of
from bow.errors import BowError, reason
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.search.baselines import baseline
from bow.planning.search.problem import Problem
from bow.planning.search.search import search
from bow.planning.search.search_settings import SearchSettings
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.simulator.tasks import TaskKind

STARTS = ("data", "expert", "single", "single")  # What searches start from: the paper's, and one device


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
    starts = (*STARTS, *(("optcnn",) if with_optcnn else ()))
    found = search(problem, SearchSettings(budget_s=seconds, seed=seed, starts=starts))
    rows["found"] = _described(problem.simulate(found.partition.splits))
    values = {
        "devices": topology.num_devices,
        "strategies": rows,
        "start": found.chain.start.name,
        "evaluated": found.evaluated,
        "search_s": round(found.seconds, 1),
    }
    return values, found.partition.splits


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
