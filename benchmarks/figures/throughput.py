"""Figures of throughput: plain PyTorch and bow take turns; every run is a new training, and a value of a box."""

import functools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch

from benchmarks.contestants import LEARNING_RATE, MOMENTUM, SGD
from benchmarks.figures.entries import Entry
from benchmarks.figures.forms import Form
from benchmarks.figures.training import Course, Training, make_training, wait_for
from benchmarks.measure import Contestant, race, warm_up
from benchmarks.workloads import Workload
from bow.devices.cores import available_cores

CALLS_CUDA = 32  # Pieces of work that are issued to a GPU before it is waited for

TRIAL_REPEATS, TRIAL_STINT_S = 3, 0.1  # Of the race between numbers of threads, before anything is measured

FIXED = (
    f"fused SGD with learning rate {LEARNING_RATE:g} and momentum {MOMENTUM:g}, float32, noise with random labels in "
    "memory: throughput does not depend on the values, and nothing fades out; engine graph, not compiled"
)


@dataclass(frozen=True)
class Measured:
    """What came out for an entry."""

    entry: Entry  # what was measured
    rates: tuple[float, ...] = ()  # samples per second, one for each run; empty where it was refused
    threads: int | None = None  # torch's threads, of those that were tried the fastest
    engine: str | None = None  # of bow, after any fallback
    refused: str | None = None  # the sentence with which bow refused it

    def as_dict(self) -> dict[str, Any]:
        """The entry and its measurements as plain values."""
        rates = [round(rate, 1) for rate in self.rates]
        measured = {"threads": self.threads, "engine": self.engine, "samples_per_s": rates}
        return {**self.entry.as_dict(), **measured} | ({"refused": self.refused} if self.refused else {})


@dataclass
class Runs:
    """The runs of one entry: every one is a new training, with a seed of its own."""

    entry: Entry  # what is measured
    threads: int  # torch's threads meanwhile
    rates: list[float] = field(default_factory=list)  # samples per second, one for each run
    engine: str | None = None  # of bow, after any fallback

    def run_once(self, course: Course, stint_s: float) -> None:
        """One more run: make the training anew, warm it up, time it, close it."""
        before, training = torch.get_num_threads(), make_training(course, self.entry)
        try:
            contestant = Contestant(functools.partial(work, training, course.device), self.threads)
            warm_up(contestant)
            ((rate,),) = race([contestant], 1, stint_s)
        finally:
            training.close()
            torch.set_num_threads(before)
        self.rates.append(rate)
        self.engine = training.engine

    def measured(self) -> Measured:
        """What came out."""
        return Measured(self.entry, tuple(self.rates), self.threads, self.engine)


def course_of(workload: Workload, form: Form, device: torch.device) -> Course:
    """Endless training of a model on noise."""
    assert workload.loss is torch.nn.functional.cross_entropy
    return Course(workload.build, workload.make_data(form.samples), SGD, device)


def measure_throughput(
    workload: Workload, entries: Sequence[Entry], form: Form, device: torch.device
) -> list[Measured]:
    """Let all entries of one batch size take turns, batch size by batch size, every other run in reverse order."""
    course = course_of(workload, form, device)
    measured: list[Measured] = []
    for _, group in groupby(entries, key=lambda entry: entry.batch_size):
        contenders = [Runs(entry, fastest_threads(course, entry)) for entry in group]
        for own in courses(course, form):
            for contender in contenders if own.seed % 2 else reversed(contenders):
                contender.run_once(own, form.stint_s)
        measured += [contender.measured() for contender in contenders]
    return measured


def courses(course: Course, form: Form) -> Iterator[Course]:
    """The course of each run, with seeds 1, 2, ...; seed 0 is that of the races between numbers of threads."""
    return (replace(course, seed=seed) for seed in range(1, form.runs + 1))


def fastest_threads(course: Course, entry: Entry) -> int:
    """The number of torch's threads with which a training is fastest, by a short race whose rates are not reported."""
    counts = thread_counts(entry, course.device)
    if len(counts) == 1:
        return counts[0]
    training, before = make_training(course, entry), torch.get_num_threads()
    contestants = [Contestant(functools.partial(work, training, course.device), threads) for threads in counts]
    for contestant in contestants:
        warm_up(contestant)
    rates = race(contestants, TRIAL_REPEATS, TRIAL_STINT_S)
    torch.set_num_threads(before)
    training.close()
    medians = [statistics.median(own) for own in rates]
    return counts[medians.index(max(medians))]


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
