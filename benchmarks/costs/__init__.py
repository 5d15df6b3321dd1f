"""How well cost models know what operators take, on a machine made up.

Three parts. `papers`: the made-up machine, `Saturation`, against what two papers measured on the one that it stands
for. `climbing`: hill climbing on it, by interval, on the operators of three networks (Liu et al., Table V).
`regression`: regressions trained on these operators and tested on a fourth network's (Table IV). Every accuracy is
against times that the model has not seen.
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
    """Settings of the experiment."""

    parts: tuple[str, ...] = setting(PARTS, "what is done", choices=PARTS)
    networks: tuple[str, ...] = setting(
        NETWORKS, "that are climbed on and learned from", choices=NETWORKS, quick=("dcgan",)
    )
    size: str = setting("paper", "of networks on the machine made up", choices=("paper", "tiny"), quick="tiny")
    noise: float = setting(0.01, "of its times: standard deviation of the logarithm", least=0)
    intervals: tuple[int, ...] = setting((2, 4, 8, 16), "threads that a climb adds at a time", quick=(4, 16))
    batch_sizes: tuple[int, ...] = setting((16, 64, 256), "of the operators that regressions see", quick=(4,))
    samples: tuple[int, ...] = setting((1, 4, 8, 16), "numbers of cases that regressions are told", quick=(1, 2))
    cases: int = setting(17, "cases of 68 that regressions predict, evenly chosen", quick=4)
    operators: int = setting(400, "that regressions are trained on, at random; half as many test them", quick=40)
    families: tuple[str, ...] = setting(tuple(ESTIMATORS), "regressions", choices=tuple(ESTIMATORS), quick=QUICK)
    seed: int = setting(0, "of noise, draws and regressions")


def measure(config: Config) -> dict[str, Any]:
    """Do the parts."""
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
    """What the made-up machine misses of what the papers measured."""
    machine = Saturation()
    rows = [{**asdict(each), "miss": round(each.miss, 4)} for each in compare(machine)]
    return [{**row, "model": round(row["model"], 2)} for row in rows]


def climbing(config: Config) -> dict[str, Any]:
    """By network and machine: the accuracy of climbs by interval."""
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
    """By samples and family: the accuracy for the network that was not seen; the same of models without training."""
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
