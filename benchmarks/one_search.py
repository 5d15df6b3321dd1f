"""Joint search of learners, splits and batch size by time to accuracy, compared with searching each alone; simulated.

A step with B samples is worth B / (1 + B / noise) samples one by one: batches cannot grow with the number of devices
forever, and splits of a small batch use few devices. All searches have the same time and the same batch sizes: `splits`
has one learner on all devices, `learners` one learner per device, and `both` chooses.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import harness
from benchmarks.harness import setting
from benchmarks.planner.problems import TITLES, cluster, graph_of, problem_of
from bow.errors import BowError
from bow.planning.search.baselines import baseline
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.problem import Problem
from bow.planning.search.search import search


@dataclass(frozen=True)
class Config(harness.Config):
    networks: tuple[str, ...] = setting(
        ("alexnet", "inception", "nmt"), "networks", choices=tuple(TITLES), quick=("alexnet",)
    )
    size: str = setting("paper", "size of the networks", quick="tiny")
    devices: int = setting(16, "number of P100 GPUs, four per machine", quick=4)
    batch_sizes: tuple[int, ...] = setting((16, 32, 64, 128), "candidate batch sizes of a learner", quick=(2, 4))
    noise_scales: tuple[float, ...] = setting((300.0, 3000.0), "gradient noise scales, in samples", quick=(9.0,))
    budget_s: float = setting(60.0, "time of each search in seconds", quick=0.5)


def measure(config: Config) -> dict[str, Any]:
    topology = cluster("P100", config.devices)
    rows = []
    for network in config.networks:
        graphs = {size: graph_of(network, config.size, size) for size in config.batch_sizes}
        problems = [problem_of(graph, topology, batch_size=size) for size, graph in graphs.items()]
        for noise_scale in config.noise_scales:
            settings = SearchSettings(budget_s=config.budget_s / len(problems), noise_scale=noise_scale)
            counts = tuple(count for count in (1, 2, 4, 8, 16, 32) if config.devices % count == 0)
            found = {
                "splits": [searched(each, settings, (1,)) for each in problems],
                "learners": [whole(each, settings, count) for each, count in itertools.product(problems, counts)],
                "both": [searched(each, settings, counts) for each in problems],
            }
            best = {name: min(own, key=lambda each: float(each["sample_us"])) for name, own in found.items()}
            rows.append({"network": TITLES[network], "noise_scale": noise_scale, **best})
            told = {name: round(each["sample_us"], 2) for name, each in best.items()}
            harness.say(f"{network}, noise {noise_scale:g}: {told} us")
    return {"rows": rows}


def searched(problem: Problem, settings: SearchSettings, learners: tuple[int, ...]) -> dict[str, Any]:
    """Return the best of several numbers of learners, each with its best splits."""
    found = search(problem, SearchSettings(**{**vars(settings), "learners": learners}))
    return told(problem, settings, found.partition.learners, found.makespan_ns)


def whole(problem: Problem, settings: SearchSettings, learners: int) -> dict[str, Any]:
    """Learners on one device each; infinitely slow if a device is too small."""
    try:
        result = problem.simulate(baseline(problem.of_one_learner(learners), "single"), learners)
    except BowError:
        result = None
    fits = result is not None and result.refusal is None
    return told(problem, settings, learners, result.makespan_ns if fits and result is not None else float("inf"))


def told(problem: Problem, settings: SearchSettings, learners: int, makespan_ns: float) -> dict[str, Any]:
    return {
        "learners": learners,
        "batch_size": problem.batch_size,
        "step_ms": makespan_ns / 1e6,
        "sample_us": makespan_ns / 1e3 / settings.worth(problem.batch_size, learners),
    }


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    gains = [
        min(row["splits"]["sample_us"], row["learners"]["sample_us"]) / row["both"]["sample_us"]
        for row in values["rows"]
    ]
    return {"gains": gains, "best": max(gains)}
