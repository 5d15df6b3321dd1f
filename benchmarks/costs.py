"""`python -m benchmarks costs`: how well cost models know what operators take, on a machine made up and on this one.

Four parts. `papers`: the made-up machine, `Saturation`, against what two papers measured on the one that it
stands for. `climbing`: hill climbing on it, by interval, on the operators of three networks (Liu et al., Table V).
`regression`: regressions trained on these operators and tested on a fourth network's (Table IV). `here`: all of that
on this machine, as far as it has cores. Every accuracy is against times that the model has not seen.
"""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import costs_report
from benchmarks.arguments import check_positive, setting
from benchmarks.cost_models import ESTIMATORS, Saturation
from benchmarks.cost_models.counters import source
from benchmarks.cost_models.evidence import compare
from benchmarks.costs_climbing import climb_all, variants
from benchmarks.costs_here import measure_network, summarise
from benchmarks.costs_population import drawn, population, several
from benchmarks.costs_regressions import MISCOUNT, compare_families, compare_others
from benchmarks.environment import inspect_environment
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from bow.devices import available_cores
from bow.errors import SettingError

PARTS = ("papers", "climbing", "regression", "here")
NETWORKS = ("resnet50", "dcgan", "inception")
UNSEEN = "alexnet"


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for costs.json and costs.md")  # noqa: RUF009 - it is dataclasses.field
    parts: tuple[str, ...] = setting(PARTS, "what is done", choices=PARTS)
    networks: tuple[str, ...] = setting(NETWORKS, "whose operators are climbed on and learned from", choices=NETWORKS)
    size: str = setting("paper", "of networks on the machine made up", choices=("paper", "tiny"))
    noise: float = setting(0.01, "of its times: standard deviation of the logarithm")
    intervals: tuple[int, ...] = setting((2, 4, 8, 16), "threads that a climb adds at a time")
    batch_sizes: tuple[int, ...] = setting((16, 64, 256), "of the operators that regressions see")
    samples: tuple[int, ...] = setting((1, 4, 8, 16), "numbers of cases that regressions are told")
    cases: int = setting(17, "cases of 68 that regressions predict, evenly chosen")
    operators: int = setting(400, "that regressions are trained on, at random; half as many test them")
    families: tuple[str, ...] = setting(tuple(ESTIMATORS), "regressions", choices=tuple(ESTIMATORS))
    batch_here: int = setting(16, "samples of a batch on this machine")
    repeats: int = setting(20, "steps that are measured here, for each number of threads, twice")
    seed: int = setting(0, "of noise, draws and regressions")
    quick: bool = setting(False, "a small part of each, to see that it works")

    def __post_init__(self) -> None:
        check_positive(self, "intervals", "batch_sizes", "samples", "cases", "operators", "batch_here", "repeats")
        if not self.noise >= 0:
            raise SettingError(f"noise must be at least 0, got {self.noise}; 0.01 is 1%")
        for name in ("parts", "networks", "families"):
            if not getattr(self, name):
                raise SettingError(f"{name} must not be empty; leave it out for all")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(
            self,
            networks=self.networks[1:2] or self.networks,
            size="tiny",
            intervals=(4, 16),
            batch_sizes=(4,),
            samples=(1, 2),
            cases=4,
            operators=40,
            families=self.families[1:4:2] or self.families,
            batch_here=2,
            repeats=2,
        )


def run(settings: Settings, command: str) -> int:
    """Do the parts, and write `costs.json` and `costs.md`."""
    settings = settings.reduced()
    prepare_output(settings.out)
    parts: Mapping[str, Callable[[Settings], Any]] = {
        "papers": papers,
        "climbing": climbing,
        "regression": regression,
        "here": here,
    }
    began = time.perf_counter()
    findings: dict[str, Any] = {"events": source(), "unseen": UNSEEN, "seconds_by_part": {}}
    for part in settings.parts:
        console().print(f"{part} ...", highlight=False)
        at = time.perf_counter()
        findings[part] = parts[part](settings)
        findings["seconds_by_part"][part] = round(time.perf_counter() - at, 1)
    environment = inspect_environment()
    values = Result("costs", command, environment, settings, time.perf_counter() - began, findings).as_dict()
    write_json(settings.out / "costs.json", values)
    write_text(settings.out / "costs.md", costs_report.markdown(values, str(environment)))
    for section in costs_report.sections(values):
        section.table.show(section.title)
    return 0


def papers(settings: Settings) -> list[dict[str, Any]]:
    """What the made-up machine misses of what the papers measured."""
    machine = Saturation()
    rows = [{**asdict(each), "miss": round(each.miss, 4)} for each in compare(machine)]
    return [{**row, "model": round(row["model"], 2)} for row in rows]


def climbing(settings: Settings) -> dict[str, Any]:
    """By network and machine: the accuracy of climbs by interval."""
    works = {network: population(network, settings.size) for network in settings.networks}
    machines = variants(settings.noise, settings.seed)
    return {
        network: {
            "operators": len(own),
            "machines": {each.title: climb_all(own, each, settings.intervals) for each in machines},
        }
        for network, own in works.items()
    }


def regression(settings: Settings) -> dict[str, Any]:
    """By samples and family: the accuracy for the network that was not seen; the same of models without training."""
    machine = Saturation(noise=settings.noise, seed=settings.seed)
    all_seen = several(settings.networks, settings.size, settings.batch_sizes)
    of_unseen = several([UNSEEN], settings.size, settings.batch_sizes)
    all_unseen = {name: work for name, work in of_unseen.items() if name not in all_seen}  # some are in all networks
    seen = drawn(all_seen, settings.operators, settings.seed)
    unseen = drawn(all_unseen, max(1, settings.operators // 2), settings.seed)
    race = functools.partial(
        compare_families,
        machine,
        seen,
        unseen,
        families=settings.families,
        num_cases=settings.cases,
        seed=settings.seed,
    )
    middle = settings.samples[(len(settings.samples) - 1) // 2]
    return {
        "trained_on": len(seen),
        "of": len(all_seen),
        "tested_on": len(unseen),
        "families": race(samples=settings.samples),
        "miscount": MISCOUNT,
        "miscounted": race(samples=[middle], miscount=MISCOUNT),
        "others": compare_others(machine, unseen, settings.cases),
    }


def here(settings: Settings) -> dict[str, Any]:
    """What the models know of this machine."""
    cores = len(available_cores())
    networks = (*settings.networks, UNSEEN)
    measured = {each: measure_network(each, settings.batch_here, cores, settings.repeats) for each in networks}
    return {"cores": cores, **summarise(measured, UNSEEN, cores)}
