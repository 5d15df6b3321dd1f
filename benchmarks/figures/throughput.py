"""Figures of throughput: plain PyTorch and bow take turns; every run is a new training, and a value of a box.

Where there are several devices, a run of bow is a training by `bow.train`, which is asked for so many of them.
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

MIN_ROUNDS = 40  # of a training by `bow.train`, since its throughput may leave out the first 20

FIXED = (
    f"fused SGD with learning rate {LEARNING_RATE:g} and momentum {MOMENTUM:g}, float32, noise with random labels in "
    "memory: throughput does not depend on the values, and nothing fades out; engine graph, not compiled"
)


@dataclass
class Runs:
    """The runs of one entry: every one is a new training, with a seed of its own."""

    entry: Entry  # what is measured
    threads: int  # torch's threads meanwhile
    rates: list[float] = field(default_factory=list)  # samples per second, one for each run
    engine: str | None = None  # of bow, after any fallback
    refused: str | None = None  # the sentence with which bow refused it

    @quiet()
    def run_once(self, course: Course, stint_s: float) -> None:
        """One more run: make the training anew, warm it up, time it, close it."""
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
        """One more training by `bow.train`; none where bow has refused one."""
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
        """The entry and its measurements as plain values."""
        measured: dict[str, Any] = {"threads": self.threads, "engine": self.engine}
        if self.refused is not None:
            measured = {"threads": None, "engine": None, "refused": self.refused}
        return {**self.entry.as_dict(), **measured, "samples_per_s": [round(each, 1) for each in self.rates]}


def course_of(workload: Workload, form: Form, device: torch.device) -> Course:
    """Endless training of a model on noise."""
    assert workload.loss is cross_entropy
    return Course(workload.build, workload.make_data(form.samples), SGD, device)


def courses(course: Course, form: Form) -> Iterator[Course]:
    """The course of each run, with seeds 1, 2, ...; seed 0 is that of the races between numbers of threads."""
    return (replace(course, seed=seed) for seed in range(1, form.runs + 1))


def measure_throughput(workload: Workload, entries: Sequence[Entry], form: Form, device: torch.device) -> list[Runs]:
    """Let all entries of one batch size take turns, batch size by batch size, every other run in reverse order."""
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
    """Let plain PyTorch on one device and trainings by `bow.train` take turns."""
    course = course_of(workload, form, device)
    # Who trains on several devices shares out the cores himself.
    threads = [fastest_threads(course, e) if e.devices == 1 else torch.get_num_threads() for e in entries]
    plain, *others = [Runs(entry, count) for entry, count in zip(entries, threads, strict=True)]
    for own in courses(course, form):
        plain.run_once(own, form.stint_s)
        for other in others:
            other.train_once(own, _num_rounds(other.entry, plain.rates[-1] * form.stint_s))
    return [plain, *others]


def train_on(entry: Entry, course: Course, rounds: int) -> Result:
    """Train by `bow.train` on as many devices as the entry says: the one place that asks for several."""
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
    """Rounds in which about so many samples are trained on."""
    assert entry.learners is not None
    return max(MIN_ROUNDS, math.ceil(samples / (entry.batch_size * entry.learners * entry.devices)))
