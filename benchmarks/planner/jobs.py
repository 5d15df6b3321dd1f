"""What the parts of the benchmark consist of, and who does it."""

import functools
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.planner.clusters import compare_strategies, without_search
from benchmarks.planner.nmt import best_over_time, of_seed
from benchmarks.planner.problems import CLUSTERS, cluster, lenet, problem_of, short_language_model
from benchmarks.planner.proofs import check_neighbours, prove
from benchmarks.planner.settings import Settings
from benchmarks.planner.simulators import compare_simulators
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.simulator.native_simulator import Algorithm

CURVES: tuple[Algorithm, ...] = ("delta", "full")

P100S = 16  # The cluster has so many

STRUCTURES = ("inception", "nmt")  # Networks whose strategies for four P100 are drawn

OPTCNN = ("P100", 16)  # The cluster on which the paper compares with OptCNN, and how much of it


@dataclass(frozen=True)
class Done:
    """What came of a job."""

    key: tuple[str, ...]  # part, and what it is about
    found: dict[str, Any]  # plain values
    splits: tuple[Split, ...] = ()  # a strategy that is to be drawn


Job: TypeAlias = Callable[[], Done]


def shared_jobs(settings: Settings, graphs: Mapping[str, OperatorGraph]) -> list[Job]:
    """What workers share: proofs, neighbours, simulators, curves and clusters; what takes long first."""
    made: list[Job] = []
    if "proof" in settings.parts:
        made += [functools.partial(_proof, name, settings) for name in settings.proofs]
    if "curve" in settings.parts and "nmt" in graphs:
        made += [functools.partial(_curve, graphs["nmt"], each, settings) for each in CURVES]
    if "neighbours" in settings.parts:
        pairs = [
            (name, count) for count in sorted(settings.local_devices, reverse=True) for name in reversed(list(graphs))
        ]
        made += [functools.partial(_neighbours, name, graphs[name], count, settings) for name, count in pairs]
    if "clusters" in settings.parts:
        made += [functools.partial(_cluster, *each, settings) for each in _places(settings, graphs)]
    if "simulators" in settings.parts:
        pairs = [(name, n) for n in sorted(settings.simulated_devices, reverse=True) for name in reversed(list(graphs))]
        made += [functools.partial(_simulators, name, graphs[name], count, settings) for name, count in pairs]
    return made


def own_jobs(settings: Settings, graphs: Mapping[str, OperatorGraph]) -> list[Job]:
    """What needs both cores: searches by two processes."""
    if "seeds" not in settings.parts or "nmt" not in graphs:
        return []
    first = settings.seed
    short = [(seed, settings.seed_s) for seed in range(first, first + settings.seeds)]
    long = [(seed, 10 * settings.seed_s) for seed in range(first, first + settings.long_seeds)]
    baselines = functools.partial(_seed_baselines, graphs["nmt"], settings)
    return [baselines, *(functools.partial(_seed, graphs["nmt"], *each, settings) for each in (*short, *long))]


def carry_out(jobs: Sequence[Job], workers: int) -> Iterator[Done]:
    """Do the jobs, in so many processes."""
    if workers == 1:
        yield from (job() for job in jobs)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(job) for job in jobs]:
            yield future.result()


def _places(settings: Settings, graphs: Mapping[str, OperatorGraph]) -> Iterator[tuple[str, OperatorGraph, str, int]]:
    for count in sorted(settings.cluster_devices, reverse=True):
        for gpu in CLUSTERS:
            if gpu != "P100" or count <= P100S:
                yield from ((name, graphs[name], gpu, count) for name in reversed(list(graphs)))


def _proof(name: str, settings: Settings) -> Done:
    graph = lenet() if name == "lenet" else short_language_model(settings.size)
    found = prove(graph, cluster("P100", 4), search_s=settings.search_s, proof_s=settings.proof_s, seed=settings.seed)
    return Done(("proof", name), found)


def _neighbours(name: str, graph: OperatorGraph, devices: int, settings: Settings) -> Done:
    found = check_neighbours(graph, cluster("P100", devices), search_s=settings.local_s, seed=settings.seed)
    return Done(("neighbours", name, str(devices)), found)


def _simulators(name: str, graph: OperatorGraph, devices: int, settings: Settings) -> Done:
    found = compare_simulators(
        graph,
        cluster("K80", devices),
        recorded_s=settings.recorded_s,
        replayed_s=settings.replayed_s,
        seed=settings.seed,
    )
    return Done(("simulators", name, str(devices)), found)


def _curve(graph: OperatorGraph, algorithm: Algorithm, settings: Settings) -> Done:
    devices = cluster("P100", 4 if settings.quick else P100S)
    return Done(
        ("curve", algorithm),
        best_over_time(graph, devices, algorithm, seconds=settings.curve_s, seed=settings.seed),
    )


def _seed_devices(settings: Settings) -> int:
    return 4 if settings.quick else 64


def _seed_baselines(graph: OperatorGraph, settings: Settings) -> Done:
    problem = problem_of(graph, cluster("K80", _seed_devices(settings)))
    return Done(("seeds", "baselines"), without_search(problem))


def _seed(graph: OperatorGraph, seed: int, seconds: float, settings: Settings) -> Done:
    devices = cluster("K80", _seed_devices(settings))
    found = of_seed(graph, devices, seconds=seconds, seed=seed, processes=settings.workers)
    return Done(("seeds", "long" if seconds > settings.seed_s else "short", str(seed)), found)


def _cluster(name: str, graph: OperatorGraph, gpu: str, devices: int, settings: Settings) -> Done:
    found, splits = compare_strategies(
        graph,
        cluster(gpu, devices),
        seconds=settings.cluster_s,
        seed=settings.seed,
        with_optcnn=(gpu, devices) == OPTCNN,
    )
    is_drawn = name in STRUCTURES and (gpu, devices) == ("P100", 4)
    return Done(("clusters", gpu, name, str(devices)), found, splits if is_drawn else ())
