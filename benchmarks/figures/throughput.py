"""Throughput figures: plain PyTorch and bow alternate; every run is a new training, and a value of a box.

With several devices, a run of bow is a training by `bow.train`.
"""

import functools
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import bow
from benchmarks.figures.forms import Entry, Form
from benchmarks.figures.training import ENGINE, Course, fastest_threads, make_training, quiet, work
from benchmarks.harness import rate, warm_up
from benchmarks.trainings import LEARNING_RATE, MOMENTUM, SGD
from benchmarks.workloads import Workload
from bow.errors import BowError
from bow.training import Result, train

MIN_ROUNDS = 40  # of a training by `bow.train`, whose throughput may exclude the first 20

FIXED = (
    f"fused SGD with learning rate {LEARNING_RATE:g} and momentum {MOMENTUM:g}, float32, noise with random labels in "
    "memory: throughput does not depend on the values, and nothing fades out; engine graph, not compiled"
)


@dataclass
class Runs:
    """The runs of one entry: each is a new training, with its own seed."""

    entry: Entry
    threads: int  # torch's threads
    rates: list[float] = field(default_factory=list)  # samples per second, one for each run
    engine: str | None = None  # of bow, after any fallback
    refused: str | None = None  # message with which bow rejected it

    @quiet()
    def run_once(self, course: Course, stint_s: float) -> None:
        """Run once: create the training, warm it up, time it, close it."""
        before, training = torch.get_num_threads(), make_training(course, self.entry)
        torch.set_num_threads(self.threads)
        run = functools.partial(work, training, course.device)
        try:
            warm_up(run)
            self.rates.append(rate(run, stint_s))
        finally:
            training.close()
            torch.set_num_threads(before)
        self.engine = training.engine

    def train_once(self, course: Course, rounds: int) -> None:
        """Train once with `bow.train`, unless bow has rejected it before."""
        if self.refused is not None:
            return
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            result = train_on(self.entry, course, rounds)
        except BowError as error:
            self.refused, self.rates = str(error), []
        else:
            self.rates.append(result.throughput)
            self.engine = result.engine
        finally:
            torch.set_num_threads(before)

    def as_dict(self) -> dict[str, Any]:
        measured: dict[str, Any] = {"threads": self.threads, "engine": self.engine}
        if self.refused is not None:
            measured = {"threads": None, "engine": None, "refused": self.refused}
        return {**self.entry.as_dict(), **measured, "samples_per_s": [round(each, 1) for each in self.rates]}


def course_of(workload: Workload, form: Form, device: torch.device) -> Course:
    """Return an endless training of a model on noise."""
    assert workload.loss is cross_entropy
    return Course(workload.build, workload.make_data(form.samples), SGD, device)


def courses(course: Course, form: Form) -> Iterator[Course]:
    """Yield the course of each run, with seeds 1, 2, ...; seed 0 is used to choose the number of threads."""
    return (replace(course, seed=seed) for seed in range(1, form.runs + 1))


def measure_throughput(workload: Workload, entries: Sequence[Entry], form: Form, device: torch.device) -> list[Runs]:
    """Measure all entries in turns, batch size by batch size, every other run in reverse order."""
    course = course_of(workload, form, device)
    measured: list[Runs] = []
    for _, group in groupby(entries, key=lambda entry: entry.batch_size):
        contenders = [Runs(entry, fastest_threads(course, entry)) for entry in group]
        for own in courses(course, form):
            for contender in contenders if own.seed % 2 else reversed(contenders):
                contender.run_once(own, form.stint_s)
        measured += contenders
    return measured


def measure_devices(workload: Workload, entries: Sequence[Entry], form: Form, device: torch.device) -> list[Runs]:
    """Measure plain PyTorch on one device and trainings by `bow.train` in turns."""
    course = course_of(workload, form, device)
    # Trainings on several devices divide the cores themselves.
    threads = [fastest_threads(course, e) if e.devices == 1 else torch.get_num_threads() for e in entries]
    plain, *others = [Runs(entry, count) for entry, count in zip(entries, threads, strict=True)]
    for own in courses(course, form):
        plain.run_once(own, form.stint_s)
        for other in others:
            other.train_once(own, _num_rounds(other.entry, plain.rates[-1] * form.stint_s))
    return [plain, *others]


def train_on(entry: Entry, course: Course, rounds: int) -> Result:
    """Train with `bow.train` on the number of devices of the entry."""
    assert entry.learners is not None
    with tempfile.TemporaryDirectory() as folder:
        return train(
            course.build,
            course.data,
            cross_entropy,
            optimizer=course.optimizer,
            batch_size=entry.batch_size,
            steps=rounds,
            learners=entry.learners,
            engine=ENGINE,
            sync=entry.synchroniser(),
            devices=entry.devices,
            run=bow.Run(Path(folder) / "run", progress=False),
            seed=course.seed,
        )


def _num_rounds(entry: Entry, samples: float) -> int:
    """Return the number of rounds that process approximately this many samples."""
    assert entry.learners is not None
    return max(MIN_ROUNDS, math.ceil(samples / (entry.batch_size * entry.learners * entry.devices)))
