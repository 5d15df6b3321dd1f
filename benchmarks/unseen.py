"""Schedules and predictions for random networks, for which nothing has been tuned.

`schedule`: bow measures the operators of each and chooses a policy, as `bow schedule compare` does. The choice then
takes turns with sequential PyTorch and the sequential native runtime, with every number of threads; it counts as slower
if the whole confidence interval of its median ratio to the best of these is below 1. `predicted`: step times
that the planner predicts for two processes, as in `python -m benchmarks predicted`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import harness, predicted
from benchmarks.harness import median_interval, ratios, setting
from benchmarks.random_networks import RANDOM
from benchmarks.schedule_cases import Entry, plain
from benchmarks.schedule_races import fastest
from bow.schedule.profiler import BoundStep, compare, measuring
from bow.schedule.profiler.measuring import ScheduledStep
from bow.timing import time_in_turns

SCHEDULE, PREDICTED = "schedule", "predicted"


@dataclass(frozen=True)
class Config(harness.Config):
    parts: tuple[str, ...] = setting((SCHEDULE, PREDICTED), "parts of the experiment", choices=(SCHEDULE, PREDICTED))
    networks: int = setting(20, "number of networks for schedules", quick=1)
    predicted: int = setting(10, "number of networks for predictions", quick=1)
    turns: int = setting(20, "number of measurements", quick=2)
    stint_s: float = setting(0.05, "seconds of a measurement", quick=0.002)
    repeats: int = setting(
        measuring.REPEATS, "steps in which to measure operators, for each number of threads", quick=2
    )


def measure(config: Config) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if SCHEDULE in config.parts:
        made["networks"] = []
        for name in list(RANDOM)[: config.networks]:
            made["networks"].append(measure_network(name, config))
            harness.say(f"{name}: {made['networks'][-1]['choice']} {made['networks'][-1]['speed_up']}")
        made["slower"] = [row["title"] for row in made["networks"] if row["speed_up"]["high"] < 1]
    if PREDICTED in config.parts:
        names = tuple(RANDOM)[: config.predicted]
        settings = predicted.Config(networks=names, random=2, mixed=0, turns=config.turns, quick=config.quick)
        made[PREDICTED] = predicted.measure(settings)
    return made


def missed(values: Mapping[str, Any]) -> bool:
    """Whether a choice is slower, or predictions missed an aim."""
    return bool(values.get("slower")) or (PREDICTED in values and predicted.missed(values[PREDICTED]))


def measure_network(name: str, config: Config) -> dict[str, Any]:
    """Return the choice for one network, and its speed-up over the best sequential case."""
    began, network = time.perf_counter(), RANDOM[name]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batch = network.build(), network.batch()
    step = BoundStep.of(model, batch, network.loss)
    profile = measuring.measure(step, repeats=config.repeats, cache=False)
    found = compare(step, profile, turns=config.turns // 2, window_s=config.stint_s)
    took_s = time.perf_counter() - began
    entries = plain(model, batch, network.loss, profile.threads)
    entries += [
        Entry(policy.name, ScheduledStep(step, policy.schedule), is_sequential=policy.is_sequential)
        for policy in found.policies
        if policy.is_sequential or policy is found.choice
    ]
    contestants = {entry.name: entry.contestant for entry in entries}
    seconds = time_in_turns(contestants, turns=config.turns, window_s=config.stint_s)
    best = fastest(seconds, [entry.name for entry in entries if entry.is_sequential])
    return {
        "title": network.title,
        "operators": step.num_operators,
        "parallelism": round(found.path.parallelism, 2),
        "sequential": best,
        "choice": found.choice.name,
        "speed_up": median_interval(ratios(seconds[best], seconds[found.choice.name])),
        "chosen_s": round(took_s, 1),
    }


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    medians = [row["speed_up"]["median"] for row in values.get("networks", ())]
    return {"medians": medians, "verdict": predicted.told(values[PREDICTED]) if PREDICTED in values else None}
