"""Measures the figures that were asked for, one after another, and writes each down as soon as it is there."""

import time
from dataclasses import replace

import torch

from benchmarks.environment import inspect_environment
from benchmarks.figures import views
from benchmarks.figures.catalogue import FIGURES, Bench
from benchmarks.figures.convergence import School
from benchmarks.figures.forms import FORMS
from benchmarks.figures.page import markdown, results_table, stem
from benchmarks.figures.settings import TABLE, Settings
from benchmarks.results import Result, console, prepare_output, write_json, write_text
from bow.errors import BowError
from bow.training.checks import resolve_device

PAGE = "figures.md"


def run(settings: Settings, command: str) -> int:
    """Measure, and write JSON, picture and page behind every figure."""
    prepare_output(settings.out)
    device = resolve_device("auto")
    bench = Bench(FORMS[settings.form], device, School(device, settings.root, _tell))
    failures: dict[str, BowError] = {}
    for name in settings.names:
        _tell(f"{name}: {FIGURES[name].title}")
        try:
            _measure(name, bench, settings, command)
        except BowError as error:
            failures[name] = error
    if len(failures) == len(settings.names):
        raise next(iter(failures.values()))
    for name, failure in failures.items():
        _tell(f"{name} could not be measured: {failure}")
    return int(bool(failures))


def _measure(name: str, bench: Bench, settings: Settings, command: str) -> None:
    began = time.perf_counter()
    findings = FIGURES[name].measure(bench)
    # Trainings that an earlier figure did count in full: this is what the figure takes on its own.
    seconds = findings.pop("trained_s", time.perf_counter() - began)
    about = {"figure": name, "form": settings.form, "device": _device_name(bench.device)}
    own = replace(settings, figure=(name,))
    values = Result(f"figures {name}", command, inspect_environment(), own, seconds, {**about, **findings}).as_dict()
    write_json(settings.out / f"{stem(name)}.json", values)
    if name != TABLE:
        views.draw(name, values, settings.out / f"{stem(name)}.png")
        results_table(values).show(f"{name}, {seconds:.0f} s")
    write_text(settings.out / PAGE, markdown(settings.out))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _tell(line: str) -> None:
    console().print(line, highlight=False)
