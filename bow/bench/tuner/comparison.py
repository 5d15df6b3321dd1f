"""The tuner's choice against an exhaustive trial, for one pair: what runs in a process of its own."""

import functools
import multiprocessing
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._inductor.cpu_vec_isa import valid_vec_isa_list

from bow.bench.contestants import LEARNING_RATE, MOMENTUM
from bow.bench.measure import Spread, ratios
from bow.bench.tuner.pairs import PAIRS, Pair
from bow.engine import step_from_loss
from bow.runtime.build import CACHE
from bow.sync import SMA
from bow.training.blueprint import Blueprint
from bow.training.lanes import Request, lanes
from bow.training.opened import Opened
from bow.training.trials import COMPILED, Trials
from bow.training.tuning import make_request, tune
from bow.tuner import Measurement, Setting, Trial, Tuner

COMPILED_COUNTS = (1, 2, 4, 8)
"""Numbers of learners that are tried exhaustively where each is compiled for itself."""

SGD = functools.partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)


@dataclass(frozen=True)
class Task:
    """What a process is told.

    Attributes:
        pair: a name in `PAIRS`.
        run_s: how long the training would take, roughly.
        passes: how often everything is measured in the exhaustive trial.
        stint_s: seconds of a measurement.
        repeats: of the choice and the best in turn.
        threads: torch's threads.
        most: learners that are tried at most.
        cache: a folder for compiled code, empty but for the native runtime; None: where it usually is.
    """

    pair: str
    run_s: float
    passes: int
    stint_s: float
    repeats: int
    threads: int
    most: int
    cache: str | None


@dataclass(frozen=True)
class Comparison:
    """What came of a pair.

    Attributes:
        pair: its name.
        choice: the tuner's.
        best: of the exhaustive trial.
        calibration_s: seconds from the beginning to the choice, everything in.
        run_s: how long the training would take with the choice.
        summary: what the log says.
        table: the decision table.
        rates: of the exhaustive trial: samples per second by setting.
        failures: settings that did not run, and why.
        final: samples per second of the choice and of the best, one for each repeat in turn; empty where they are one.
    """

    pair: str
    choice: Setting
    best: Setting
    calibration_s: float
    run_s: float
    summary: str
    table: Sequence[Mapping[str, Any]]
    rates: Mapping[Setting, Sequence[float]]
    failures: Mapping[Setting, str]
    final: tuple[Sequence[float], Sequence[float]] | None

    @property
    def ratio(self) -> Spread | None:
        """Throughput of the choice over that of the best, in turn; None where they are the same."""
        return None if self.final is None else ratios(*self.final)

    @property
    def share(self) -> float:
        """The part of the run that calibration takes."""
        return self.calibration_s / self.run_s

    def speed(self, setting: Setting) -> Spread:
        """Samples per second in the exhaustive trial."""
        return Spread.of(self.rates[setting])


def compare(task: Task) -> Comparison:
    """Try everything, tune in a process of its own, and race the choice against the best."""
    _begin(task)
    pair = PAIRS[task.pair]
    blueprint, opened = _prepare(pair)
    trials = Trials(blueprint, opened.feed())
    try:
        everything = _settings(
            make_request("auto", "auto", False, opened, 1, epochs=1, steps=1), task, blueprint, trials
        )
        rates, failures = _try_all(trials, everything, task)
        best = max(rates, key=lambda setting: statistics.median(rates[setting]))
        steps = round(task.run_s * statistics.median(rates[best]) / pair.batch_size)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            tuned = process.submit(calibrate, task, max(1, steps)).result()
        choice = tuned.choice
        if choice not in rates:
            rates[choice] = list(_measured(trials.run(Trial(choice, task.stint_s, 1, "the choice"))))
        final = None if best == choice else _race(trials, choice, best, task)
    finally:
        trials.close()
    run_s = steps * pair.batch_size / statistics.median(rates[choice])
    return Comparison(task.pair, choice, best, tuned.seconds, run_s, tuned.summary, tuned.rows, rates, failures, final)


@dataclass(frozen=True)
class Calibrated:
    """What the tuner found.

    Attributes:
        choice: the setting.
        seconds: from the beginning to the choice, everything in.
        summary: what the log says.
        rows: the decision table.
    """

    choice: Setting
    seconds: float
    summary: str
    rows: Sequence[Mapping[str, Any]]


def calibrate(task: Task, steps: int) -> Calibrated:
    """Tune as `bow.train` does, for a training of so many batches."""
    if task.cache is not None:
        os.environ[CACHE] = task.cache
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(task.cache) / "inductor")
    _begin(task)
    pair = PAIRS[task.pair]
    blueprint, opened = _prepare(pair)
    request = make_request("auto", "auto", False, opened, 1, epochs=1, steps=steps)
    request = replace(request, most=min(task.most, request.most))
    began = time.perf_counter()
    tuned = tune(request, blueprint, opened, Tuner(cache=False), loss=pair.workload.loss, rule=1, say=_nothing)
    seconds = time.perf_counter() - began
    choice = Setting(tuned.engine + COMPILED * tuned.compile, tuned.learners, tuned.threads or 1)
    return Calibrated(choice, seconds, tuned.summary, tuned.rows)


def _begin(task: Task) -> None:
    """Import what a training imports anyway, and find out what the processor can do, as is done once on a machine."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    valid_vec_isa_list()
    blueprint, _ = _prepare(PAIRS[task.pair])
    blueprint.build("eager", 1).close()


def _prepare(pair: Pair) -> tuple[Blueprint, Opened]:
    data = pair.make_data()
    opened = Opened(data, batch_size=pair.batch_size, epochs=1, steps=1, seed=0)
    blueprint = Blueprint(
        model=pair.workload.build(),
        step=step_from_loss(pair.workload.loss),
        optimizer=SGD,
        sync=SMA(),
        device=torch.device("cpu"),
        dispatch="fixed",
        precision=None,
        clip_norm=None,
        memory="device",
        on_nan="restart",
        buffers="average",
        seed=0,
        example=opened.example,
    )
    return blueprint, opened


def _settings(request: Request, task: Task, blueprint: Blueprint, trials: Trials) -> list[Setting]:
    """Everything that can be chosen: every lane, every number of learners."""
    found: set[Setting] = set()
    for lane in lanes(replace(request, most=min(task.most, request.most)), blueprint, trials):
        most = max(lane.counts)
        every = COMPILED_COUNTS if lane.compiles_each else range(1, most + 1)
        found |= {lane.at(count) for count in every if count <= most}
    return sorted(found, key=lambda setting: (setting.engine, setting.threads, setting.learners))


def _try_all(
    trials: Trials, settings: Sequence[Setting], task: Task
) -> tuple[dict[Setting, list[float]], dict[Setting, str]]:
    rates: dict[Setting, list[float]] = {setting: [] for setting in settings}
    failures: dict[Setting, str] = {}
    for number in range(task.passes):
        for setting in settings if number % 2 == 0 else reversed(settings):
            if setting in failures:
                continue
            measured = trials.run(Trial(setting, task.stint_s, 1, "exhaustive trial"))
            rates[setting] += measured.rates
            if measured.failure is not None:
                failures[setting] = measured.failure
    return {setting: found for setting, found in rates.items() if setting not in failures}, failures


def _race(trials: Trials, choice: Setting, best: Setting, task: Task) -> tuple[Sequence[float], Sequence[float]]:
    """Both in turn, every other time in reverse order."""
    rates: dict[Setting, list[float]] = {choice: [], best: []}
    for repeat in range(task.repeats):
        for setting in (choice, best) if repeat % 2 == 0 else (best, choice):
            rates[setting] += _measured(trials.run(Trial(setting, task.stint_s, 1, "in turn")))
    return rates[choice], rates[best]


def _measured(measurement: Measurement) -> Sequence[float]:
    if measurement.failure is not None:
        raise RuntimeError(f"{measurement.setting} ran before and fails now: {measurement.failure}")
    return measurement.rates


def _nothing(text: str) -> None:
    """Show nothing."""
