"""Figures of several devices: throughput by `bow.train`, which is asked for so many of them."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import bow
from benchmarks.figures.entries import Entry
from benchmarks.figures.forms import Form
from benchmarks.figures.throughput import Measured, Runs, course_of, courses, fastest_threads
from benchmarks.figures.training import ENGINE, Course
from benchmarks.workloads import Workload
from bow.errors import BowError
from bow.training import Result, train

MIN_ROUNDS = 40  # Of a training, since its throughput may leave out the first 20


@dataclass
class Attempts(Runs):
    """Trainings of one entry by `bow.train`: rates, or the sentence with which bow refuses them."""

    refused: str | None = None  # why there are no rates

    def train_once(self, course: Course, rounds: int) -> None:
        """One more training; none where bow has refused one."""
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

    def measured(self) -> Measured:
        """What came out."""
        if self.refused is not None:
            return Measured(self.entry, refused=self.refused)
        return super().measured()


def measure_devices(workload: Workload, entries: Sequence[Entry], form: Form, device: torch.device) -> list[Measured]:
    """Let plain PyTorch on one device and trainings by `bow.train` take turns."""
    first, *others = entries
    course = course_of(workload, form, device)
    plain = Runs(first, fastest_threads(course, first))
    attempts = [Attempts(entry, _threads(course, entry)) for entry in others]
    for own in courses(course, form):
        plain.run_once(own, form.stint_s)
        for attempt in attempts:
            attempt.train_once(own, _num_rounds(attempt.entry, plain.rates[-1] * form.stint_s))
    return [plain.measured(), *(attempt.measured() for attempt in attempts)]


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


def _threads(course: Course, entry: Entry) -> int:
    """As for other figures on one device; who trains on several shares out the cores himself."""
    return fastest_threads(course, entry) if entry.devices == 1 else torch.get_num_threads()


def _num_rounds(entry: Entry, samples: float) -> int:
    """Rounds in which about so many samples are trained on."""
    assert entry.learners is not None
    return max(MIN_ROUNDS, math.ceil(samples / (entry.batch_size * entry.learners * entry.devices)))
