"""Convergence figures: trainings on real data, their accuracy after each epoch, and their time to a target."""

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.figures.forms import MOMENTUM, Entry, Lesson, Row
from benchmarks.figures.training import Course, accuracy_of, fastest_threads, make_training, quiet, wait_for
from benchmarks.trainings import Training
from bow.data import DataSplits
from bow.errors import DivergenceError

LAST_EPOCHS = 5  # accuracy is the median over this many epochs

METRIC = (
    f"Accuracy after epoch e is the median of the test accuracies after epochs max(1, e - {LAST_EPOCHS - 1}) to e; the "
    "target is reached after the first epoch whose accuracy is not below it; time is that of training up to there, "
    "without evaluations and without the first piece of work, in which bow captures the training step"
)


@dataclass(frozen=True)
class Run:
    entry: Entry
    lr: float
    seed: int  # of initial weights and of the order of samples
    threads: int  # torch's threads, the fastest of those that were tried
    engine: str | None  # of bow, after any fallback
    accuracies: tuple[float, ...]  # on the test data, after each epoch
    times_s: tuple[float, ...]  # training seconds at the end of each epoch
    samples: int  # number of samples trained on in that time
    diverged: bool  # whether training ended with a `DivergenceError`
    wall_s: float  # total duration

    def as_dict(self, target: float) -> dict[str, Any]:
        """Return the training and its time to target as plain values."""
        epoch = epoch_of(self.accuracies, target)
        return {
            **self.entry.as_dict(),
            "lr": self.lr,
            "seed": self.seed,
            "threads": self.threads,
            "engine": self.engine,
            "epochs": epoch,
            "time_s": None if epoch is None else round(self.times_s[epoch - 1], 4),
            "samples_per_s": round(self.samples / self.times_s[-1], 1) if self.times_s else None,
            "diverged": self.diverged,
            "accuracies": [round(accuracy, 4) for accuracy in self.accuracies],
            "times_s": [round(time_s, 4) for time_s in self.times_s],
        }


def smoothed(accuracies: Sequence[float]) -> list[float]:
    """Return the median over the last five epochs, or fewer at the beginning, after each epoch.

    Example:
        >>> smoothed([0.5, 0.9, 0.7, 0.7, 0.8, 0.8])
        [0.5, 0.7, 0.7, 0.7, 0.7, 0.8]
    """
    return [statistics.median(accuracies[max(0, end - LAST_EPOCHS) : end]) for end in range(1, len(accuracies) + 1)]


def epoch_of(accuracies: Sequence[float], target: float) -> int | None:
    """Return the first epoch after which the smoothed accuracy reached the target; None if there is none."""
    return next((epoch for epoch, value in enumerate(smoothed(accuracies), 1) if value >= target), None)


def median_to_target(rows: Sequence[Row], measure: str) -> float:
    """Return the median of epochs or seconds to the target; infinite for trainings that did not reach it."""
    return statistics.median(math.inf if row[measure] is None else row[measure] for row in rows)


def best_batch_size(rows: Sequence[Row]) -> int:
    """Return the batch size with the shortest time to target; if none reached it, with the highest final accuracy."""

    def merit(batch_size: int) -> tuple[float, float]:
        own = [row for row in rows if row["batch_size"] == batch_size]
        last = (smoothed(row["accuracies"])[-1] if row["accuracies"] else 0.0 for row in own)
        return median_to_target(own, "time_s"), -statistics.median(last)

    return min((int(row["batch_size"]) for row in rows), key=merit)


class School:
    """Runs and caches trainings, which several figures may share."""

    def __init__(self, device: torch.device, root: str, tell: Callable[[str], None]) -> None:
        self._device = device
        self._root = root
        self._tell = tell
        self._data: dict[Lesson, DataSplits] = {}
        self._threads: dict[tuple[Lesson, Entry], int] = {}
        self._runs: dict[tuple[Lesson, Entry, int], Run] = {}

    def data(self, lesson: Lesson) -> DataSplits:
        if lesson not in self._data:
            self._data[lesson] = lesson.load(self._root)
        return self._data[lesson]

    def runs(self, lesson: Lesson, entries: Sequence[Entry], seeds: int) -> list[Run]:
        """Train all entries with all seeds, seed by seed, so that other load affects all entries equally."""
        runs = [self._run(lesson, entry, seed) for seed in range(seeds) for entry in entries]
        return sorted(runs, key=lambda run: entries.index(run.entry))

    def _run(self, lesson: Lesson, entry: Entry, seed: int) -> Run:
        key = lesson, entry, seed
        if key not in self._runs:
            course = self._course(lesson, seed)
            self._runs[key] = run = train(course, entry, lesson, self._test(lesson), self._threads_for(key))
            self._tell(_line(run, lesson))
        return self._runs[key]

    def _threads_for(self, key: tuple[Lesson, Entry, int]) -> int:
        """Return the fastest number of threads for an entry."""
        lesson, entry, seed = key
        if (lesson, entry) not in self._threads:
            endless = self._course(lesson, seed, endless=True)
            self._threads[lesson, entry] = fastest_threads(endless, entry)
        return self._threads[lesson, entry]

    def _course(self, lesson: Lesson, seed: int, endless: bool = False) -> Course:
        lr = 0.0 if endless else lesson.lr  # the race of threads must not diverge
        sgd = functools.partial(torch.optim.SGD, lr=lr, momentum=MOMENTUM, weight_decay=lesson.weight_decay, fused=True)
        epochs = None if endless else lesson.epochs
        return Course(lesson.build, self.data(lesson).train, sgd, self._device, epochs, seed)

    def _test(self, lesson: Lesson) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.data(lesson).validation
        return inputs.to(self._device), targets.to(self._device)


@quiet()
def train(course: Course, entry: Entry, lesson: Lesson, test: tuple[torch.Tensor, torch.Tensor], threads: int) -> Run:
    """Train until the target is reached or the data end."""
    began, before = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(threads)
    training = make_training(course, entry)
    timed = TimedEpochs(training, course.device)
    accuracies: list[float] = []
    times_s: list[float] = []
    samples, diverged = 0, False
    try:
        while timed.train_epoch():
            samples = timed.samples
            accuracies.append(accuracy_of(training.model, test))
            times_s.append(timed.seconds)
            if lesson.stops and epoch_of(accuracies, lesson.target):
                break
    except DivergenceError:
        diverged = True
    finally:
        training.close()
        torch.set_num_threads(before)
    wall_s = time.perf_counter() - began
    seen = tuple(accuracies), tuple(times_s), samples
    return Run(entry, lesson.lr, course.seed, threads, training.engine, *seen, diverged, wall_s)


class TimedEpochs:
    """Trains epoch by epoch and counts seconds and samples, without the first call."""

    def __init__(self, training: Training, device: torch.device) -> None:
        self.seconds = 0.0
        self.samples = 0
        self._training = training
        self._device = device
        self._epochs = 0
        self._is_warm = False

    def train_epoch(self) -> bool:
        """Train to the end of the next epoch; returns False at the end of the data."""
        began = time.perf_counter()
        while samples := self._training():
            if self._is_warm:
                self.samples += samples
            else:
                wait_for(self._device)
                self._is_warm, began = True, time.perf_counter()
            if self._training.epochs > self._epochs:
                self._epochs = self._training.epochs
                break
        wait_for(self._device)
        self.seconds += time.perf_counter() - began
        return samples > 0


def _line(run: Run, lesson: Lesson) -> str:
    found: Mapping[str, Any] = run.as_dict(lesson.target)
    who = "plain PyTorch" if run.entry.learners is None else f"bow, learners={run.entry.learners}"
    epoch = found["epochs"]
    outcome = "never" if epoch is None else f"in epoch {epoch} after {found['time_s']:.2f} s"
    what = f"{lesson.model}, {who}, batch {run.entry.batch_size}, lr {run.lr:g}, seed {run.seed}"
    return f"{what}: {lesson.target:.0%} {outcome}"
