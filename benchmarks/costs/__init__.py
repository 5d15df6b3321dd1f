"""Accuracy of operator cost models, on a simulated machine.

Three parts. `papers`: the machine model `Saturation`, compared with the measurements of two papers on the real machine.
`climbing`: hill climbing on it, by interval, for the operators of three networks (Liu et al., Table V). `regression`:
regressions trained on these operators and tested on a fourth network's (Table IV). All accuracies refer to times that
the model has not seen.
"""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import harness
from benchmarks.costs.climbing import climb_all, variants
from benchmarks.costs.evidence import compare
from benchmarks.costs.machine import Saturation
from benchmarks.costs.operators import drawn, population, several
from benchmarks.costs.regression import ESTIMATORS, MISCOUNT, compare_families
from benchmarks.harness import setting

PARTS = ("papers", "climbing", "regression")

NETWORKS = ("resnet50", "dcgan", "inception")

QUICK = tuple(ESTIMATORS)[1:4:2]

UNSEEN = "alexnet"


@dataclass(frozen=True)
class Config(harness.Config):
    parts: tuple[str, ...] = setting(PARTS, "parts of the experiment", choices=PARTS)
    networks: tuple[str, ...] = setting(
        NETWORKS, "networks for hill climbing and for training regressions", choices=NETWORKS, quick=("dcgan",)
    )
    size: str = setting("paper", "size of the networks", choices=("paper", "tiny"), quick="tiny")
    noise: float = setting(0.01, "noise of times: standard deviation of the logarithm", least=0)
    intervals: tuple[int, ...] = setting((2, 4, 8, 16), "numbers of threads that a climb adds per step", quick=(4, 16))
    batch_sizes: tuple[int, ...] = setting((16, 64, 256), "batch sizes of the operators for regressions", quick=(4,))
    samples: tuple[int, ...] = setting((1, 4, 8, 16), "numbers of sample cases of regressions", quick=(1, 2))
    cases: int = setting(17, "number of cases, of 68, that regressions predict", quick=4)
    operators: int = setting(400, "random training operators of regressions; half as many for tests", quick=40)
    families: tuple[str, ...] = setting(tuple(ESTIMATORS), "regressions", choices=tuple(ESTIMATORS), quick=QUICK)
    seed: int = setting(0, "random seed of noise, draws and regressions")


def measure(config: Config) -> dict[str, Any]:
    parts: Mapping[str, Callable[[Config], Any]] = {
        "papers": papers,
        "climbing": climbing,
        "regression": regression,
    }
    findings: dict[str, Any] = {"unseen": UNSEEN, "seconds_by_part": {}}
    for part in config.parts:
        harness.say(f"{part} ...")
        at = time.perf_counter()
        findings[part] = parts[part](config)
        findings["seconds_by_part"][part] = round(time.perf_counter() - at, 1)
    return findings


def papers(config: Config) -> list[dict[str, Any]]:
    """Deviations of the simulated machine from the papers' measurements."""
    machine = Saturation()
    rows = [{**asdict(each), "miss": round(each.miss, 4)} for each in compare(machine)]
    return [{**row, "model": round(row["model"], 2)} for row in rows]


def climbing(config: Config) -> dict[str, Any]:
    """Return the accuracy of climbs by interval, by network and machine."""
    works = {network: population(network, config.size) for network in config.networks}
    machines = variants(config.noise, config.seed)
    return {
        network: {
            "operators": len(own),
            "machines": {each.title: climb_all(own, each, config.intervals) for each in machines},
        }
        for network, own in works.items()
    }


def regression(config: Config) -> dict[str, Any]:
    """Return the accuracy for the unseen network by samples and family; and that of models without training."""
    machine = Saturation(noise=config.noise, seed=config.seed)
    all_seen = several(config.networks, config.size, config.batch_sizes)
    of_unseen = several([UNSEEN], config.size, config.batch_sizes)
    all_unseen = {name: work for name, work in of_unseen.items() if name not in all_seen}  # some are in all networks
    seen = drawn(all_seen, config.operators, config.seed)
    unseen = drawn(all_unseen, max(1, config.operators // 2), config.seed)
    race = functools.partial(
        compare_families,
        machine,
        seen,
        unseen,
        families=config.families,
        num_cases=config.cases,
        seed=config.seed,
    )
    middle = config.samples[(len(config.samples) - 1) // 2]
    return {
        "trained_on": len(seen),
        "of": len(all_seen),
        "tested_on": len(unseen),
        "families": race(samples=config.samples),
        "miscount": MISCOUNT,
        "miscounted": race(samples=[middle], miscount=MISCOUNT),
    }
