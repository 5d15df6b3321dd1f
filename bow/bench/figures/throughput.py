"""Figures of throughput: plain PyTorch and bow take turns, and every turn is a value of a box."""

import functools
import statistics
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from bow.bench.contestants import LEARNING_RATE, MOMENTUM, SGD
from bow.bench.figures.entries import Entry
from bow.bench.figures.forms import Form
from bow.bench.figures.training import Course, Training, make_training, wait_for
from bow.bench.measure import Contestant, race, warm_up
from bow.bench.workloads import Workload
from bow.device.cores import available_cores

CALLS_CUDA = 32
"""Pieces of work that are issued to a GPU before it is waited for."""

FIXED = (
    f"fused SGD with learning rate {LEARNING_RATE:g} and momentum {MOMENTUM:g}, float32, noise with random labels in "
    "memory: throughput does not depend on the values, and nothing fades out; engine graph, not compiled"
)


@dataclass(frozen=True)
class Measured:
    """What came out for an entry.

    Attributes:
        entry: what was measured.
        rates: samples per second, one for each turn; empty where it was refused.
        threads: torch's threads, of those that were tried.
        engine: of bow, after any fallback.
        refused: the sentence with which bow refused it.
    """

    entry: Entry
    rates: tuple[float, ...] = ()
    threads: int | None = None
    engine: str | None = None
    refused: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The entry and its measurements as plain values."""
        rates = [round(rate, 1) for rate in self.rates]
        measured = {"threads": self.threads, "engine": self.engine, "samples_per_s": rates}
        return {**self.entry.as_dict(), **measured} | ({"refused": self.refused} if self.refused else {})


@dataclass(frozen=True)
class Lane:
    """An entry with a number of threads, ready to run.

    Attributes:
        entry: what is measured.
        training: it.
        contestant: runs it.
    """

    entry: Entry
    training: Training
    contestant: Contestant

    def measured(self, rates: Sequence[float]) -> Measured:
        """What came out for it."""
        return Measured(self.entry, tuple(rates), self.contestant.threads, self.training.engine)


def course_of(workload: Workload, form: Form, device: torch.device) -> Course:
    """Endless training of a model on noise."""
    assert workload.loss is torch.nn.functional.cross_entropy
    return Course(workload.build, workload.make_data(form.samples), SGD, device)


def measure_throughput(
    workload: Workload, entries: Sequence[Entry], form: Form, device: torch.device
) -> list[Measured]:
    """Let all entries of one batch size take turns, batch size by batch size."""
    course = course_of(workload, form, device)
    measured: list[Measured] = []
    for _, group in groupby(entries, key=lambda entry: entry.batch_size):
        with ExitStack() as stack:
            lanes = [lane for entry in group for lane in open_lanes(course, entry, stack)]
            rates = race([lane.contestant for lane in lanes], form.repeats, form.stint_s)
            measured += fastest(lane.measured(own) for lane, own in zip(lanes, rates, strict=True))
    return measured


def open_lanes(course: Course, entry: Entry, stack: ExitStack) -> list[Lane]:
    """The entry with each number of threads that makes sense for it, warm; the stack closes it."""
    training = make_training(course, entry)
    stack.callback(training.close)
    call = functools.partial(work, training, course.device)
    lanes = [Lane(entry, training, Contestant(call, threads)) for threads in thread_counts(entry, course.device)]
    before = torch.get_num_threads()
    for lane in lanes:
        warm_up(lane.contestant)
    torch.set_num_threads(before)
    return lanes


def fastest(measured: Iterable[Measured]) -> list[Measured]:
    """Of every entry the number of threads with the highest median."""
    best: dict[Entry, Measured] = {}
    for own in measured:
        rival = best.setdefault(own.entry, own)
        if own.rates and rival.rates and statistics.median(own.rates) > statistics.median(rival.rates):
            best[own.entry] = own
    return list(best.values())


def thread_counts(entry: Entry, device: torch.device) -> tuple[int, ...]:
    """The numbers of torch's threads with which an entry is tried.

    What has a core for every learner runs with one thread; more threads are for what would leave cores idle.
    """
    cores = len(available_cores())
    return (1, cores) if (entry.learners or 1) < cores and device.type == "cpu" else (1,)


def work(training: Training, device: torch.device) -> int:
    """Do a piece of endless work; returns its samples."""
    samples = 0
    for _ in range(CALLS_CUDA if device.type == "cuda" else 1):
        stretch = training.advance()
        assert stretch is not None
        samples += stretch.num_samples
    wait_for(device)
    return samples
