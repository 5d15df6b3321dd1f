"""What the parts of the benchmark consist of, and who does it."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.planner.problems import CLUSTERS, cluster, graph_of, lenet, problem_of, short_language_model
from benchmarks.planner.searches import (
    best_over_time,
    check_neighbours,
    compare_strategies,
    of_seed,
    prove,
    with_passing,
    without_search,
)
from benchmarks.planner.simulators import compare_simulators
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.search.lower_bounds import least_batch_ns
from bow.planning.simulator.simulation import Algorithm

if TYPE_CHECKING:
    from benchmarks.planner import Config

CURVES: tuple[Algorithm, ...] = ("delta", "full")

P100S = 16  # The cluster has so many

STRUCTURES = ("inception", "nmt")  # Networks whose strategies for four P100 are drawn

FIGURE8: Mapping[str, int] = {"over all GPUs": 1, "for each GPU": 64}  # What NMT's 64 samples are of, times of them

OPTCNN = ("P100", 16)  # The cluster on which the paper compares with OptCNN, and how much of it


@dataclass(frozen=True)
class Done:
    key: tuple[str, ...]  # part, and what it is about
    found: dict[str, Any]  # plain values
    splits: tuple[Split, ...] = ()  # a strategy that is to be drawn


Job: TypeAlias = Callable[[], Done]


def shared_jobs(config: "Config", graphs: Mapping[str, OperatorGraph]) -> list[Job]:
    """What workers share: proofs, neighbours, simulators, curves and clusters; what takes long first."""
    made: list[Job] = []
    if "proof" in config.parts:
        made += [functools.partial(_proof, name, config) for name in config.proofs]
    if "curve" in config.parts and "nmt" in graphs:
        made += [functools.partial(_curve, graphs["nmt"], each, config) for each in CURVES]
    if "neighbours" in config.parts:
        pairs = [
            (name, count) for count in sorted(config.local_devices, reverse=True) for name in reversed(list(graphs))
        ]
        made += [functools.partial(_neighbours, name, graphs[name], count, config) for name, count in pairs]
    if "clusters" in config.parts:
        made += [functools.partial(_cluster, *each, config) for each in _places(config.cluster_devices, graphs)]
    if "per_gpu" in config.parts:
        made += [functools.partial(_per_gpu, *each, config) for each in _places(config.per_gpu_devices, graphs)]
    if "passing" in config.parts:
        made += [functools.partial(_passing, name, graphs[name], config) for name in reversed(list(graphs))]
    if "bounds" in config.parts:
        made += [functools.partial(_bound, name, graphs[name], config) for name in reversed(list(graphs))]
    if "figure8" in config.parts and "nmt" in graphs:
        made += [functools.partial(_figure8, samples, config) for samples in FIGURE8]
    if "simulators" in config.parts:
        pairs = [(name, n) for n in sorted(config.simulated_devices, reverse=True) for name in reversed(list(graphs))]
        made += [functools.partial(_simulators, name, graphs[name], count, config) for name, count in pairs]
    return made


def own_jobs(config: "Config", graphs: Mapping[str, OperatorGraph]) -> list[Job]:
    """What needs both cores: searches by two processes."""
    if "seeds" not in config.parts or "nmt" not in graphs:
        return []
    first = config.seed
    short = [(seed, config.seed_s) for seed in range(first, first + config.seeds)]
    long = [(seed, 10 * config.seed_s) for seed in range(first, first + config.long_seeds)]
    baselines = functools.partial(_seed_baselines, graphs["nmt"], config)
    return [baselines, *(functools.partial(_seed, graphs["nmt"], *each, config) for each in (*short, *long))]


def _places(
    counts: Sequence[int], graphs: Mapping[str, OperatorGraph]
) -> Iterator[tuple[str, OperatorGraph, str, int]]:
    for count in sorted(counts, reverse=True):
        for gpu in CLUSTERS:
            if gpu != "P100" or count <= P100S:
                yield from ((name, graphs[name], gpu, count) for name in reversed(list(graphs)))


def _proof(name: str, config: "Config") -> Done:
    graph = lenet() if name == "lenet" else short_language_model(config.size)
    found = prove(graph, cluster("P100", 4), search_s=config.search_s, proof_s=config.proof_s, seed=config.seed)
    return Done(("proof", name), found)


def _neighbours(name: str, graph: OperatorGraph, devices: int, config: "Config") -> Done:
    found = check_neighbours(graph, cluster("P100", devices), search_s=config.local_s, seed=config.seed)
    return Done(("neighbours", name, str(devices)), found)


def _passing(name: str, graph: OperatorGraph, config: "Config") -> Done:
    devices = cluster("P100", 4 if config.quick else P100S)
    return Done(("passing", name), with_passing(graph, devices, seconds=config.passing_s, seed=config.seed))


def _bound(name: str, graph: OperatorGraph, config: "Config") -> Done:
    devices = 4 if config.quick else P100S
    bound_ns = least_batch_ns(problem_of(graph, cluster("P100", devices)))
    return Done(("bounds", name), {"devices": devices, "bound_ms": bound_ns / 1e6})


def _figure8(samples: str, config: "Config") -> Done:
    devices = 4 if config.quick else 64
    graph = graph_of("nmt", config.size, times=FIGURE8[samples] if devices == 64 else 1)
    problem = problem_of(graph, cluster("K80", devices))
    return Done(("figure8", samples), {"devices": devices, "strategies": without_search(problem, ("data", "expert"))})


def _simulators(name: str, graph: OperatorGraph, devices: int, config: "Config") -> Done:
    found = compare_simulators(
        graph,
        cluster("K80", devices),
        recorded_s=config.recorded_s,
        replayed_s=config.replayed_s,
        seed=config.seed,
    )
    return Done(("simulators", name, str(devices)), found)


def _curve(graph: OperatorGraph, algorithm: Algorithm, config: "Config") -> Done:
    devices = cluster("P100", 4 if config.quick else P100S)
    return Done(
        ("curve", algorithm),
        best_over_time(graph, devices, algorithm, seconds=config.curve_s, seed=config.seed),
    )


def _seed_devices(config: "Config") -> int:
    return 4 if config.quick else 64


def _seed_baselines(graph: OperatorGraph, config: "Config") -> Done:
    problem = problem_of(graph, cluster("K80", _seed_devices(config)))
    return Done(("seeds", "baselines"), without_search(problem))


def _seed(graph: OperatorGraph, seed: int, seconds: float, config: "Config") -> Done:
    devices = cluster("K80", _seed_devices(config))
    found = of_seed(graph, devices, seconds=seconds, seed=seed, processes=config.workers)
    return Done(("seeds", "long" if seconds > config.seed_s else "short", str(seed)), found)


def _cluster(name: str, graph: OperatorGraph, gpu: str, devices: int, config: "Config") -> Done:
    found, splits = compare_strategies(
        graph,
        cluster(gpu, devices),
        seconds=config.cluster_s,
        seed=config.seed,
        with_optcnn=(gpu, devices) == OPTCNN,
    )
    is_drawn = name in STRUCTURES and (gpu, devices) == ("P100", 4)
    return Done(("clusters", gpu, name, str(devices)), found, splits if is_drawn else ())


def _per_gpu(name: str, graph: OperatorGraph, gpu: str, devices: int, config: "Config") -> Done:
    whole = graph_of(name, config.size, times=devices)
    found, _ = compare_strategies(whole, cluster(gpu, devices), seconds=config.cluster_s, seed=config.seed)
    return Done(("per_gpu", gpu, name, str(devices)), found)
