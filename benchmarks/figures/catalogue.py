"""The figures: what each measures and how it is drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.figures import throughput
from benchmarks.figures.characteristics import FIXED, characteristics
from benchmarks.figures.convergence import METRIC, School, best_batch_size
from benchmarks.figures.devices import measure_devices
from benchmarks.figures.entries import AVERAGED, INDEPENDENT, Entry, bow_entries
from benchmarks.figures.forms import Form, Lesson
from benchmarks.figures.paper import Measure
from benchmarks.figures.settings import TABLE
from benchmarks.figures.throughput import Measured, measure_throughput
from benchmarks.workloads import Workload

BATCH_SIZE = 32  # Of the figures that do not vary it

LOGISTIC_BATCH_SIZE = 16

MOST_DEVICES = 2  # Of figure 5.13


@dataclass(frozen=True)
class Bench:
    """What figures are measured with."""

    form: Form  # which models, data and amounts
    device: torch.device  # where everything runs that runs on one
    school: School  # does the trainings that several figures share


@dataclass(frozen=True)
class View:
    """How a figure is drawn: boxes side by side, or curves over time."""

    x: str = "learners"  # what is along the axis: a field of the rows, or `"entry"`
    series: tuple[str, ...] = ()  # fields that tell colours apart
    measure: Measure = "samples_per_s"  # what is up the axis
    curves: bool = False  # the accuracy of each training over time instead


@dataclass(frozen=True)
class Figure:
    """A figure of the paper."""

    title: str  # what it shows
    measure: Callable[[Bench], dict[str, Any]]  # measures it
    view: View | None = View()  # how it is drawn; None: a table only


def _rates(
    chosen: Callable[[Form], Workload],
    entries: Callable[[Form], Sequence[Entry]],
    measure: Callable[[Workload, Sequence[Entry], Form, torch.device], list[Measured]] = measure_throughput,
) -> Callable[[Bench], dict[str, Any]]:
    """How a figure of throughput is measured."""

    def measured(bench: Bench) -> dict[str, Any]:
        form, workload = bench.form, chosen(bench.form)
        rows = measure(workload, entries(form), form, bench.device)
        run = f"a new training, warmed up and then timed for {form.stint_s:g} s"
        return {
            "model": workload.title,
            "fixed": throughput.FIXED,
            "amount": f"{form.runs} runs in turns, each {run}",
            "rows": [row.as_dict() for row in rows],
        }

    return measured


def _trainings(
    chosen: Callable[[Form], Lesson], others: Callable[[Form, int], Sequence[Entry]] | None = None
) -> Callable[[Bench], dict[str, Any]]:
    """How a figure of convergence is measured: plain PyTorch with all batch sizes, and what is compared to its best."""

    def run(bench: Bench) -> dict[str, Any]:
        form, lesson = bench.form, chosen(bench.form)
        runs = bench.school.runs(lesson, [Entry(batch) for batch in lesson.batch_sizes], form.seeds)
        best = best_batch_size([run.as_dict(lesson.target) for run in runs])
        trained_s = sum(run.wall_s for run in runs)
        if others is not None:
            plain = [run for run in runs if run.entry.batch_size in (best, form.small_batch)]
            compared = bench.school.runs(lesson, others(form, best), form.seeds)
            trained_s += sum(run.wall_s for run in compared)
            runs = [*plain, *compared]
        return {
            "model": lesson.model,
            "data": lesson.data,
            "target": lesson.target,
            "fixed": lesson.fixed,
            "metric": METRIC,
            "amount": f"{form.seeds} seed{'s' if form.seeds > 1 else ''}",
            "best_batch_size": best,
            "small_batch": form.small_batch,
            "trained_s": round(trained_s, 1),
            "rows": [run.as_dict(lesson.target) for run in runs],
        }

    return run


def _against_best(form: Form, best: int) -> list[Entry]:
    small = bow_entries(form.small_batch, (1, *form.converging_learners), [AVERAGED])
    return small if best == form.small_batch else [*bow_entries(best, [1], [AVERAGED]), *small]


def _alone(batch_size: int, learners: Sequence[int]) -> list[Entry]:
    return [Entry(batch_size), *bow_entries(batch_size, learners, [INDEPENDENT])]


def _overhead(form: Form) -> list[Entry]:
    return [Entry(BATCH_SIZE), *bow_entries(BATCH_SIZE, form.learners, [INDEPENDENT, AVERAGED])]


def _by_batch_size(form: Form) -> list[Entry]:
    return [
        entry
        for batch_size in form.batch_sizes
        for entry in (Entry(batch_size), *bow_entries(batch_size, (1, 2), [AVERAGED]))
    ]


def _scaling(form: Form) -> list[Entry]:
    return [Entry(BATCH_SIZE), *bow_entries(BATCH_SIZE, (1, 2), [AVERAGED], form.devices)]


def _overhead_between(form: Form) -> list[Entry]:
    devices = [count for count in form.devices if count <= MOST_DEVICES]
    return [Entry(BATCH_SIZE), *bow_entries(BATCH_SIZE, (1, 2), [INDEPENDENT, AVERAGED], devices)]


def _table(bench: Bench) -> dict[str, Any]:
    return {"fixed": FIXED, "rows": characteristics(bench.form, bench.school)}


_EXPLORE_RESNET = _trainings(lambda form: form.resnet_lesson)
_COMPARE_LENET = _trainings(lambda form: form.lenet_lesson, _against_best)

FIGURES: dict[str, Figure] = {
    "5.1": Figure(
        "ResNet: time to accuracy of plain PyTorch, by batch size",
        _EXPLORE_RESNET,
        View("batch_size", measure="time_s"),
    ),
    "5.2": Figure("ResNet: test accuracy over time, by batch size", _EXPLORE_RESNET, View("batch_size", curves=True)),
    "5.3": Figure(
        "LeNet: time to accuracy of plain PyTorch, by batch size",
        _trainings(lambda form: form.lenet_lesson),
        View("batch_size", measure="time_s"),
    ),
    "5.4": Figure(
        "LeNet: time to accuracy of plain PyTorch and of bow", _COMPARE_LENET, View("entry", ("system",), "time_s")
    ),
    "5.5": Figure(
        "LeNet: epochs to accuracy of plain PyTorch and of bow", _COMPARE_LENET, View("entry", ("system",), "epochs")
    ),
    "5.6": Figure(
        "Logistic regression: throughput by number of learners, batch 16",
        _rates(lambda form: form.logistic, lambda form: _alone(LOGISTIC_BATCH_SIZE, form.many_learners)),
    ),
    "5.7": Figure(
        "ResNet: throughput by number of learners, batch 32",
        _rates(lambda form: form.resnet, lambda form: _alone(BATCH_SIZE, form.learners)),
    ),
    "5.8": Figure(
        "LeNet: throughput by number of learners, batch 32",
        _rates(lambda form: form.lenet, lambda form: _alone(BATCH_SIZE, form.many_learners)),
    ),
    "5.9": Figure(
        "ResNet: throughput by number of devices, batch 32",
        _rates(lambda form: form.resnet, _scaling, measure_devices),
        View("devices", ("learners",)),
    ),
    "5.10": Figure(
        "ResNet: throughput by batch size",
        _rates(lambda form: form.resnet, _by_batch_size),
        View("batch_size", ("system", "learners")),
    ),
    "5.11": Figure(
        "LeNet: what synchronisation costs within a device, batch 32",
        _rates(lambda form: form.lenet, _overhead),
        View("learners", ("sync",)),
    ),
    "5.12": Figure(
        "ResNet: what synchronisation costs within a device, batch 32",
        _rates(lambda form: form.resnet, _overhead),
        View("learners", ("sync",)),
    ),
    "5.13": Figure(
        "ResNet: what synchronisation costs between devices, batch 32",
        _rates(lambda form: form.resnet, _overhead_between, measure_devices),
        View("devices", ("learners", "sync")),
    ),
    TABLE: Figure("Models and data sets", _table, view=None),
}
