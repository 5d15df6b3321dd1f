"""The online tuner under varying load, compared with fixed numbers of learners.

Each training of LeNet has three phases: idle machine, another process on one of the cores, idle machine. The
tuner starts with one learner per core, and adds and removes learners after windows of training; its samples per second
include the cost of its trials.
"""

import contextlib
import functools
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bow
from benchmarks import harness
from benchmarks.dispatch import another
from benchmarks.harness import ratios, setting, spread, take_turns
from benchmarks.trainings import ENDLESS, BowTraining
from benchmarks.workloads import WORKLOADS
from bow.data import open_stream
from bow.devices import available_cores
from bow.training.tuning import Watch

ONLINE = "online"
PHASES = ("idle", "one core busy", "idle again")


@dataclass(frozen=True)
class Config(harness.Config):
    model: str = setting("lenet", "model to train", choices=tuple(WORKLOADS), quick="logistic_regression")
    batch_size: int = setting(16, "batch size")
    learners: tuple[int, ...] = setting((1, 2, 4), "fixed numbers of learners", quick=(2,))
    most: int = setting(8, "maximum number of learners of the tuner")
    window_s: float = setting(0.25, "measurement window of the tuner in seconds", quick=0.001)
    phase_s: float = setting(20.0, "duration of a phase in seconds", quick=0.05)
    turns: int = setting(2, "number of trainings of each", quick=1)
    samples: int = setting(16384, "size of the data set", quick=1024)


def measure(config: Config) -> dict[str, Any]:
    """Measure samples per second by phase of all contestants in turns."""
    cases = {str(count): functools.partial(train, config, count) for count in config.learners}
    found = take_turns({**cases, ONLINE: functools.partial(train, config, None)}, config.turns)
    rows = []
    for phase, name in enumerate(PHASES):
        rates = {case: [turn[phase]["samples_per_s"] for turn in turns] for case, turns in found.items()}
        best = max(cases, key=lambda case, rates=rates: statistics.median(rates[case]))  # type: ignore[misc]
        after = [turn[phase]["learners"] for turn in found[ONLINE]]
        over = spread(ratios(rates[ONLINE], rates[best]), 3)
        each = {case: spread(own, 1) for case, own in rates.items()}
        rows.append({"phase": name, "samples_per_s": each, "best": int(best), "ratio": over, "learners": after})
    means = {
        case: [statistics.mean(phase["samples_per_s"] for phase in turn) for turn in own] for case, own in found.items()
    }
    overall = {case: spread(ratios(means[ONLINE], own), 3) for case, own in means.items() if case != ONLINE}
    return {"cores": len(available_cores()), "rows": rows, "overall": overall}


def train(config: Config, learners: int | None) -> list[dict[str, Any]]:
    """Run a training of three phases with a fixed number of learners, or with the tuner."""
    workload = WORKLOADS[config.model]
    stream = open_stream(workload.make_data(config.samples), batch_size=config.batch_size, steps=ENDLESS)
    training = BowTraining(workload.model, workload.loss, stream, learners or len(available_cores()))
    tuner = bow.Tuner(window_s=config.window_s)
    watch = None if learners else Watch(training.replicas, tuner, [config.most])
    samples, found = training(), []
    began = time.perf_counter()
    for phase in range(len(PHASES)):
        with another() if phase == 1 else contextlib.nullcontext():
            before, since = samples, time.perf_counter()
            while (now := time.perf_counter()) - since < config.phase_s:
                samples += training()
                if watch is not None:
                    watch.round_ended(time.perf_counter() - began, samples)
        found.append({"samples_per_s": (samples - before) / (now - since), "learners": training.replicas.learners})
    training.close()
    harness.say(f"{learners or ONLINE}: {found}")
    return found


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"fixed": values["settings"]["learners"]}
