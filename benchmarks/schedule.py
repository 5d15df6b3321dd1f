"""A training step of the papers' networks, by every policy, against one operator after another.

For each network all take turns within one process: plain PyTorch and the native runtime with one executor, by number of
threads; first come, first served, with executors in Python and with native ones, in every uniform number of executors
and threads; critical path first and its variants; strategies 1 to 3, and 3 with types apart that disturb each other.
The best of them then race again. Beside them is timed what `bow schedule compare` chose from measurements of its own.
Apart from that: what scheduling itself costs.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import schedule_report
from benchmarks.arguments import check_positive, setting
from benchmarks.environment import inspect_environment
from benchmarks.line_up import counted
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from benchmarks.schedule_contestants import PYTORCH, Entry, PythonQueue, left_out, plain, python_queue_name, scheduled
from benchmarks.schedule_cost import BY_PRIORITY, decisions_per_s, measure_cost
from benchmarks.schedule_effects import effects
from benchmarks.schedule_races import Races
from benchmarks.schedule_spinning import SpinningStep
from bow.devices import available_cores
from bow.errors import SettingError
from bow.models import NETWORKS
from bow.schedule.profiler import BoundStep, compare, policies_here
from bow.schedule.profiler.measuring import REPEATS, measure
from bow.timing import time_in_turns

GRAPHI = ("lstm", "phased_lstm", "pathnet", "googlenet")
LIU = ("resnet50", "dcgan", "inception", "alexnet")

# The best policy is to be so many times as fast as the best that is sequential, on so many networks
FASTER, FASTER_ON = 1.08, 3

NOT_SLOWER = 0.98  # What bow chooses is to be so many times as fast on all networks, at least

MOST_NS = 1000.0  # What finding the order may cost, for each operator


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for schedule.json and schedule.md")  # noqa: RUF009 - it is dataclasses.field
    networks: tuple[str, ...] = setting((*GRAPHI, *LIU), "whose steps are run", choices=tuple(NETWORKS))
    size: str = setting("tiny", "of the networks")
    turns: int = setting(12, "turns of everybody; the best have twice as many more")
    stint_s: float = setting(0.05, "seconds of each")
    repeats: int = setting(REPEATS, "steps in which operators are measured, for each number of threads")
    operators: int = setting(2048, "operators that do nothing, for the cost of scheduling")
    widths: tuple[int, ...] = setting((1, 8, 512), "how many of them are ready at once")
    quick: bool = setting(False, "a small part, to see that it works: one network, three short turns")

    def __post_init__(self) -> None:
        check_positive(self, "turns", "stint_s", "repeats", "operators", "widths")
        if not self.networks:
            raise SettingError("networks must not be empty; leave it out for all")
        for name in self.networks:
            NETWORKS[name].size(self.size)

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        one = self.networks[-1:]
        return replace(self, networks=one, turns=3, stint_s=0.002, repeats=2, operators=64, widths=(4,))


def run(settings: Settings, command: str) -> int:
    """Measure, and write `schedule.json` and `schedule.md`; 1 where an aim is missed, else 0."""
    cores = len(available_cores())
    if cores < 2:
        raise SettingError("operators run side by side on 2 cores or more, got 1; run this where there are more")
    settings = settings.reduced()
    prepare_output(settings.out)
    began, threads = time.perf_counter(), torch.get_num_threads()
    try:
        networks = {}
        for name in settings.networks:
            networks[name] = measure_network(name, settings, cores)
            console().print(schedule_report.summary(name, networks[name]), highlight=False)
        costs = [measure_cost(settings.operators, width, settings.turns, settings.stint_s) for width in settings.widths]
    finally:
        torch.set_num_threads(threads)
    findings = {
        "cores": cores,
        "networks": networks,
        "cost": costs,
        "left_out": left_out(cores),
        "aims": aims(networks, costs),
    }
    environment = inspect_environment()
    values = Result("schedule", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    write_json(settings.out / "schedule.json", values)
    write_text(settings.out / "schedule.md", schedule_report.markdown(values, str(environment)))
    schedule_report.headline(networks).show(f"policies against one operator after another; {environment}")
    for line in schedule_report.verdicts(values["aims"]):
        console().print(line, highlight=False)
    return 0 if all(aim["is_met"] for aim in values["aims"].values()) else 1


def measure_network(name: str, settings: Settings, cores: int) -> dict[str, Any]:
    """All about one network."""
    began = time.perf_counter()
    network = NETWORKS[name]
    torch.manual_seed(0)
    model, batch = network.build(settings.size), network.batch(settings.size)
    torch.set_num_threads(1)
    subject = BoundStep.of(model, batch, network.loss)
    profile = measure(subject, repeats=settings.repeats, cache=False)
    policies = policies_here(subject, profile, cores, settings.repeats)
    found = compare(subject, profile, policies=policies, turns=settings.turns, window_s=settings.stint_s)
    with contextlib.ExitStack() as at_the_end:
        queue = at_the_end.enter_context(contextlib.closing(PythonQueue(subject, cores)))
        spinning = {n: SpinningStep(name, settings.size, n) for n in profile.threads if n > 1}
        for step in spinning.values():
            at_the_end.enter_context(contextlib.closing(step))
        entries = [
            *plain(model, batch, network.loss, profile.threads),
            *(
                Entry(f"{PYTORCH}, {counted(n, 'thread')} that spin", step, is_sequential=True)
                for n, step in spinning.items()
            ),
            *scheduled(subject, policies, cores),
            Entry(python_queue_name(cores), queue, is_side_by_side=True),
        ]
        races = race(entries, found.choice.name, settings)
    return {
        "operators": subject.num_operators,
        "parallelism": round(found.path.parallelism, 2),
        "critical_path_ms": round(found.path.length / 1e6, 4),
        "predicted_ms": {policy.name: round(1e3 * policy.predicted.makespan, 4) for policy in policies},
        "verdict": found.summary,
        **races.as_dict(),
        "uniform": sorted(races.uniform),
        "effects": effects(races.race, cores),
        "decisions_per_s": decisions_per_s(subject, profile, cores, repeats=settings.turns),
        "seconds": round(time.perf_counter() - began, 1),
    }


def race(entries: list[Entry], choice: str, settings: Settings) -> Races:
    """Let everybody take turns, and then the best, still warm, among themselves."""
    contestants = {entry.name: entry.contestant for entry in entries}
    first = Races(
        time_in_turns(contestants, turns=settings.turns, window_s=settings.stint_s),
        sequential=[entry.name for entry in entries if entry.is_sequential],
        side_by_side=[entry.name for entry in entries if entry.is_side_by_side],
        uniform=[entry.name for entry in entries if entry.is_uniform],
        choice=choice,
    )
    best = {name: contestants[name] for name in first.finalists}
    return replace(first, final=time_in_turns(best, turns=2 * settings.turns, window_s=settings.stint_s))


def aims(networks: Mapping[str, Mapping[str, Any]], costs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the benchmark is to show, what it shows, and whether that is enough."""
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
