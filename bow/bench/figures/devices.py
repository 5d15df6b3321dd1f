"""Figures of several devices: throughput by `bow.train`, which is asked for so many of them."""

import math
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from bow.bench.figures.entries import Entry
from bow.bench.figures.forms import Form
from bow.bench.figures.throughput import Lane, Measured, course_of, fastest, open_lanes, thread_counts
from bow.bench.figures.training import ENGINE, Course
from bow.bench.measure import race
from bow.bench.workloads import Workload
from bow.errors import BowError
from bow.training import Result, train

MIN_ROUNDS = 40
"""Of a training, since its throughput may leave out the first 20."""


@dataclass
class Attempts:
    """What trainings of one entry have brought so far: rates, or the sentence with which bow refuses them.

    Attributes:
        entry: what is trained.
        threads: torch's threads meanwhile.
        rates: samples per second, one for each training.
        engine: of bow, after any fallback.
        refused: why there are none.
    """

    entry: Entry
    threads: int
    rates: list[float] = field(default_factory=list)
    engine: str | None = None
    refused: str | None = None

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
        return Measured(self.entry, tuple(self.rates), self.threads, self.engine)


def measure_devices(workload: Workload, entries: Sequence[Entry], form: Form, device: torch.device) -> list[Measured]:
    """Let plain PyTorch on one device and trainings by `bow.train` take turns.

    Args:
        workload: what is trained.
        entries: of plain PyTorch the first one, of bow the others.
        form: how often and for how long.
        device: of plain PyTorch.
    """
    plain, *others = entries
    course = course_of(workload, form, device)
    attempts = [Attempts(entry, threads) for entry in others for threads in _thread_counts(entry, device)]
    with ExitStack() as stack:
        lanes = open_lanes(course, plain, stack)
        rates: list[list[float]] = [[] for _ in lanes]
        for _ in range(form.repeats):
            _take_turns(lanes, rates, form.stint_s)
            speed = max(own[-1] for own in rates)
            for attempt in attempts:
                attempt.train_once(course, _num_rounds(attempt.entry, speed * form.stint_s))
    measured = (lane.measured(own) for lane, own in zip(lanes, rates, strict=True))
    return fastest([*measured, *(attempt.measured() for attempt in attempts)])


def train_on(entry: Entry, course: Course, rounds: int) -> Result:
    """Train by `bow.train` on as many devices as the entry says: the one place that asks for several.

    Raises:
        BowError: this version, or this machine, cannot.
    """
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
            run_dir=Path(folder) / "run",
            seed=course.seed,
            progress=False,
        )


def _thread_counts(entry: Entry, device: torch.device) -> tuple[int, ...]:
    """As for other figures on one device; who trains on several shares out the cores himself."""
    return thread_counts(entry, device) if entry.devices == 1 else (torch.get_num_threads(),)


def _take_turns(lanes: Sequence[Lane], rates: Sequence[list[float]], stint_s: float) -> None:
    turns = race([lane.contestant for lane in lanes], 1, stint_s)
    for own, turn in zip(rates, turns, strict=True):
        own += turn


def _num_rounds(entry: Entry, samples: float) -> int:
    """Rounds in which about so many samples are trained on."""
    assert entry.learners is not None
    return max(MIN_ROUNDS, math.ceil(samples / (entry.batch_size * entry.learners * entry.devices)))
