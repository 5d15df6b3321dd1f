"""A training step of the papers' networks under every scheduling policy, against sequential execution.

For each network, all take turns within one process: plain PyTorch and the native runtime with one executor, by number
of threads; first come, first served, with every uniform number of executors and threads; critical path first and its
variants; strategies 1 to 3, and 3 with operator types separated that interfere. The best of them race again, together
with the choice of `bow schedule compare` from its own measurements. Also measured: the overhead of scheduling
itself.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import harness
from benchmarks.harness import counted, setting
from benchmarks.schedule_cases import (
    PYTORCH,
    Entry,
    SpinningStep,
    left_out,
    plain,
    scheduled,
    shape,
)
from benchmarks.schedule_cost import BY_PRIORITY, measure_cost
from benchmarks.schedule_races import Races, effects
from bow.devices import available_cores
from bow.errors import SettingError
from bow.models import NETWORKS
from bow.schedule.profiler import BoundStep, compare, measuring, policies_here
from bow.timing import time_in_turns

GRAPHI = ("lstm", "phased_lstm", "pathnet", "googlenet")
LIU = ("resnet50", "dcgan", "inception", "alexnet")

# Aim: the best policy is at least this many times as fast as the best sequential case, on this many networks
FASTER, FASTER_ON = 1.08, 3

NOT_SLOWER = 0.98  # aim: speed of bow's choice relative to the best sequential case, on all networks

MOST_NS = 1000.0  # aim: most time to find the order, per operator


@dataclass(frozen=True)
class Config(harness.Config):
    networks: tuple[str, ...] = setting((*GRAPHI, *LIU), "networks", choices=tuple(NETWORKS), quick=("alexnet",))
    size: str = setting("tiny", "size of the networks")
    turns: int = setting(12, "number of measurements; the best are measured twice as often again", quick=3)
    stint_s: float = setting(0.05, "seconds of a measurement", quick=0.002)
    repeats: int = setting(measuring.REPEATS, "steps to measure operators in, for each number of threads", quick=2)
    operators: int = setting(2048, "number of trivial operators, for the cost of scheduling", quick=64)
    widths: tuple[int, ...] = setting((1, 8, 512), "numbers of parallel chains of them", quick=(4,))


def measure(config: Config) -> dict[str, Any]:
    """Measure all networks, and the overhead of scheduling."""
    cores = len(available_cores())
    if cores < 2:
        raise SettingError("operators run side by side on 2 cores or more, got 1; run this where there are more")
    for name in config.networks:
        NETWORKS[name].size(config.size)
    networks = {}
    for name in config.networks:
        networks[name] = measure_network(name, config, cores)
        best, choice = (networks[name]["policies"][role] for role in ("best", "choice"))
        harness.say(
            f"{NETWORKS[name].title}: {best['name']} over {networks[name]['sequential']}, chosen {choice['name']}"
        )
    costs = [measure_cost(config.operators, width, config.turns, config.stint_s) for width in config.widths]
    return {
        "cores": cores,
        "networks": networks,
        "cost": costs,
        "left_out": left_out(cores),
        "aims": aims(networks, costs),
    }


def missed(values: Mapping[str, Any]) -> bool:
    return not all(aim["is_met"] for aim in values["aims"].values())


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    networks = list(values["networks"].values())

    def fastest(found: Mapping[str, Any]) -> str:
        name: str = min(found["race_ms"], key=lambda name: found["race_ms"][name]["median"])
        return name

    return {
        "everybody": dict.fromkeys(who for found in networks for who in found["race_ms"]),
        "uniform_pairs": dict.fromkeys(name for found in networks for name in found["uniform"]),
        "recommended": f"first come, {shape(1, values['cores'])}",
        "fastest": fastest,
    }


def measure_network(name: str, config: Config, cores: int) -> dict[str, Any]:
    began = time.perf_counter()
    network = NETWORKS[name]
    torch.manual_seed(0)
    model, batch = network.build(config.size), network.batch(config.size)
    torch.set_num_threads(1)
    subject = BoundStep.of(model, batch, network.loss)
    profile = measuring.measure(subject, repeats=config.repeats, cache=False)
    policies = policies_here(subject, profile, cores, config.repeats)
    found = compare(subject, profile, policies=policies, turns=config.turns, window_s=config.stint_s)
    with contextlib.ExitStack() as at_the_end:
        spinning = {n: SpinningStep(name, config.size, n) for n in profile.threads if n > 1}
        for step in spinning.values():
            at_the_end.enter_context(contextlib.closing(step))
        entries = [
            *plain(model, batch, network.loss, profile.threads),
            *(
                Entry(f"{PYTORCH}, {counted(n, 'thread')} that spin", step, is_sequential=True)
                for n, step in spinning.items()
            ),
            *scheduled(subject, policies, cores),
        ]
        races = race(entries, found.choice.name, config)
    return {
        "operators": subject.num_operators,
        "parallelism": round(found.path.parallelism, 2),
        "critical_path_ms": round(found.path.length / 1e6, 4),
        "predicted_ms": {policy.name: round(1e3 * policy.predicted.makespan, 4) for policy in policies},
        "verdict": found.summary,
        **races.as_dict(),
        "uniform": sorted(races.uniform),
        "effects": effects(races.race),
        "seconds": round(time.perf_counter() - began, 1),
    }


def race(entries: list[Entry], choice: str, config: Config) -> Races:
    """Race all entries, and then the best ones among themselves, without a pause."""
    contestants = {entry.name: entry.contestant for entry in entries}
    first = Races(
        time_in_turns(contestants, turns=config.turns, window_s=config.stint_s),
        sequential=[entry.name for entry in entries if entry.is_sequential],
        side_by_side=[entry.name for entry in entries if entry.is_side_by_side],
        uniform=[entry.name for entry in entries if entry.is_uniform],
        choice=choice,
    )
    best = {name: contestants[name] for name in first.finalists}
    return replace(first, final=time_in_turns(best, turns=2 * config.turns, window_s=config.stint_s))


def aims(networks: Mapping[str, Mapping[str, Any]], costs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Aims of the benchmark: target, result, and whether it was reached."""
    best = {name: found["policies"]["best"]["speed_up"]["median"] for name, found in networks.items()}
    chosen = {name: found["policies"]["choice"]["speed_up"]["median"] for name, found in networks.items()}
    faster = [name for name, speed_up in best.items() if speed_up >= FASTER]
    slower = [name for name, speed_up in chosen.items() if speed_up < NOT_SLOWER]
    most_ns = max(cost["added_ns"][BY_PRIORITY]["median"] for cost in costs)
    wanted = min(FASTER_ON, len(networks))
    return {
        "faster": {"aim": FASTER, "networks": faster, "wanted": wanted, "is_met": len(faster) >= wanted},
        "not_slower": {"aim": NOT_SLOWER, "networks": slower, "least": min(chosen.values()), "is_met": not slower},
        "cost": {"aim_ns": MOST_NS, "most_ns": most_ns, "is_met": most_ns <= MOST_NS},
    }
