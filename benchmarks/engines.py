"""Samples per second of PyTorch, plain and compiled, and of bow's engines, side by side.

For every model and batch size, PyTorch and bow with each engine and several numbers of learners take turns within one
process. What follows: the best of bow against the best of PyTorch, what a second learner on a second core brings, and
what bounds each model.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import check_positive, setting
from benchmarks.bounds import RULE, Bound, Machine, find_bound, sentences
from benchmarks.contestants import LEARNING_RATE, MOMENTUM, BowTraining, Trainings
from benchmarks.engines_report import contest_table, markdown, summary
from benchmarks.environment import inspect_environment
from benchmarks.group import Group, geometric_mean
from benchmarks.line_up import PYTORCH, RIVALS, Lane, line_up
from benchmarks.measure import Contestant, Spread, race, warm_up
from benchmarks.operator_cost import measure_operator_costs
from benchmarks.results import RESULTS, Result, console, prepare_output, write_json, write_text
from benchmarks.workloads import WORKLOADS, Data
from bow.errors import SettingError


@dataclass(frozen=True)
class Settings:
    """Settings of the benchmark."""

    out: Path = setting(RESULTS, "folder for engines.json and engines.md")  # noqa: RUF009 - it is dataclasses.field
    models: tuple[str, ...] = setting(tuple(WORKLOADS), "models to train", choices=tuple(WORKLOADS))
    batches: tuple[int, ...] = setting((4, 16, 32), "batch sizes, per learner")
    learners: tuple[int, ...] = setting((1, 2, 4, 8), "numbers of learners, of those that make sense for a model")
    rivals: tuple[str, ...] = setting(RIVALS, "what runs besides plain PyTorch", choices=RIVALS)
    threads: tuple[int, ...] = setting((1, 2), "numbers of torch's threads")
    repeats: int = setting(7, "turns of each contestant")
    stint_s: float = setting(0.2, "seconds of a turn")
    samples: int = setting(16384, "samples in memory")
    quick: bool = setting(False, "a small part, to see that it works: logistic regression, batch 4, short turns")

    def __post_init__(self) -> None:
        check_positive(self, "batches", "learners", "threads", "repeats", "stint_s", "samples")

    def reduced(self) -> "Settings":
        """What `quick` makes of the settings."""
        if not self.quick:
            return self
        return replace(self, models=("logistic_regression",), batches=(4,), repeats=3, stint_s=0.05, samples=1024)


def run(settings: Settings, command: str) -> int:
    """Measure all groups, print the table, and write `engines.json` and `engines.md`."""
    settings = settings.reduced()
    prepare_output(settings.out)
    began, threads = time.perf_counter(), torch.get_num_threads()
    environment = inspect_environment()
    try:
        costs = measure_operator_costs()
        machine = Machine(costs, environment.cores)
        groups = measure_groups(settings)
        bounds = [bound for group in groups if (bound := find_bound(group, machine)) is not None]
    finally:
        torch.set_num_threads(threads)
    found = findings(settings, groups, bounds, machine, costs)
    result = Result("engines", command, environment, settings, time.perf_counter() - began, found)
    values = result.as_dict()
    write_json(settings.out / "engines.json", values)
    write_text(settings.out / "engines.md", markdown(groups, bounds, values, environment))
    contest_table(groups).show(f"the best of bow against the best of PyTorch; {environment}")
    for line in (*values["sentences"].values(), *(note for group in groups for note in group.notes)):
        console().print(line, highlight=False)
    return 0


def findings(
    settings: Settings,
    groups: Sequence[Group],
    bounds: Sequence[Bound],
    machine: Machine,
    costs: dict[str, Spread],
) -> dict[str, Any]:
    """What was measured and what follows from it, as plain values."""
    mean = geometric_mean(groups)
    return {
        "fixed": f"fused SGD with learning rate {LEARNING_RATE:g} and momentum {MOMENTUM:g}, SMA in every round, "
        f"float32, {settings.samples} samples in memory: images of 28x28, for ResNet-8 of 3x32x32, for LSTM 20 tokens",
        "contest": "best of PyTorch and best of bow by the race of everybody, raced again alone: figures of that race",
        "contests": [group.contest_dict() for group in groups],
        "geometric_mean": None if mean is None else round(mean, 3),
        "two_learners_over_one": [group.gains_dict() for group in groups],
        "operator_us": {name: cost.scaled(1e6).as_dict(digits=2) for name, cost in costs.items()},
        "core": machine.as_dict(),
        "rule": RULE,
        "sentences": sentences(bounds),
        "bounds": [bound.as_dict() for bound in bounds],
        "ratio": "to plain PyTorch with its better number of threads, repeat by repeat",
        "groups": [group.as_dict() for group in groups],
    }


def measure_groups(settings: Settings) -> list[Group]:
    """Measure every model with every batch size."""
    groups = []
    for model in settings.models:
        data = WORKLOADS[model].make_data(settings.samples)
        for batch in settings.batches:
            groups.append(measure_group(model, batch, data, settings))
            console().print(summary(groups[-1]), highlight=False)
    return groups


def measure_group(model: str, batch_size: int, data: Data, settings: Settings) -> Group:
    """Let everybody train one model with one batch size."""
    began = time.perf_counter()
    workload = WORKLOADS[model]
    with contextlib.closing(Trainings(workload, data, batch_size)) as trainings:
        entries: list[tuple[Lane, Contestant]] = []
        notes: list[str] = []
        for lane in line_up(workload, settings.rivals, settings.learners, settings.threads):
            entry, note = enter(lane, trainings)
            entries += [] if entry is None else [entry]
            notes += [f"{model}, batch {batch_size}, {lane}: {note}"] if note else []
        rates = race([contestant for _, contestant in entries], settings.repeats, settings.stint_s)
        lanes = tuple(replace(lane, rates=tuple(own)) for (lane, _), own in zip(entries, rates, strict=True))
        group = Group(model, batch_size, lanes, tuple(notes))
        contestants = {lane: contestant for lane, (_, contestant) in zip(lanes, entries, strict=True)}
        final = race_final(group, contestants, settings)
    return replace(group, final=final, seconds=time.perf_counter() - began)


def race_final(
    group: Group, contestants: Mapping[Lane, Contestant], settings: Settings
) -> tuple[tuple[float, ...], ...]:
    """Let the best of PyTorch and the best of bow, still warm, race again alone."""
    pytorch, bow = group.best_of_pytorch, group.best_of_bow
    if pytorch is None or bow is None:
        return ()
    rates = race([contestants[pytorch], contestants[bow]], settings.repeats, settings.stint_s)
    return tuple(tuple(own) for own in rates)


def enter(lane: Lane, trainings: Trainings) -> tuple[tuple[Lane, Contestant] | None, str]:
    """Make a contestant and warm it up: the contestant, or None and why it is left out."""
    torch.set_num_threads(lane.threads)
    began = time.perf_counter()
    try:
        training = trainings.of(lane)
        made_s = time.perf_counter() - began
        contestant = Contestant(training, lane.threads)
        # torch.compile leaves `nn.LSTM` alone unless it is told otherwise.
        with torch._dynamo.config.patch(allow_rnn=lane.implementation in PYTORCH):
            lane = replace(lane, first_call_s=made_s + warm_up(contestant))
    except SettingError:
        raise
    except Exception as error:  # a machine without a C++ compiler, for one
        return None, f"left out, {type(error).__name__}: {_first_words(error)}"
    ran = training.engine if isinstance(training, BowTraining) else lane.expected
    return (lane, contestant), "" if ran == lane.expected else f"ran as {ran}"


def _first_words(error: Exception) -> str:
    """The first line of a message; the second one as well where the first only introduces it."""
    first, second, *_ = [*str(error).splitlines(), "", ""]
    return f"{first} {second}" if first.endswith(":") else first
