"""Trainings of the figures with plain PyTorch and bow, on any device, from the same stream of batches."""

import contextlib
import functools
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.figures.forms import Entry
from benchmarks.harness import rate, take_turns, warm_up
from benchmarks.trainings import BowTraining, Deals, PlainTraining, Training
from bow.data import BatchStream, evaluation_batches, open_stream
from bow.devices.cores import available_cores
from bow.engines import EngineName
from bow.replicas import OptimizerFactory
from bow.training import Accuracy

ENGINE: EngineName = "graph"  # for bow: the native runtime on a CPU, CUDA graphs on a GPU
CALLS_CUDA = 32  # calls issued to a GPU before synchronising
TRIAL_TURNS, TRIAL_S = 3, 0.1  # to choose the number of threads, before the measurements


@dataclass(frozen=True)
class Course:
    """Model, data and settings of a training."""

    build: Callable[[], nn.Module]  # makes the model
    data: tuple[Tensor, Tensor]  # inputs and targets, in host memory
    optimizer: OptimizerFactory  # makes the optimizer
    device: torch.device
    epochs: int | None = None  # number of epochs; None: endless
    seed: int = 0  # of initial weights and of the order of samples

    def model(self) -> nn.Module:
        """Return the model, with the same initial weights for all entries."""
        with torch.random.fork_rng(devices=[]):  # it is built in host memory
            torch.manual_seed(self.seed)
            return self.build()

    def stream(self, batch_size: int, data: tuple[Tensor, Tensor]) -> BatchStream:
        """Return batches of these data, in the same order for all entries."""
        if self.epochs is None:
            return open_stream(data, batch_size=batch_size, steps=1, seed=self.seed)
        return open_stream(data, batch_size=batch_size, epochs=self.epochs, seed=self.seed)


def make_training(course: Course, entry: Entry) -> Training:
    """Create the training of plain PyTorch or of bow."""
    if entry.learners is None:
        inputs, targets = (tensor.to(course.device) for tensor in course.data)
        deals = Deals(course.stream(entry.batch_size, (inputs, targets)))
        return PlainTraining(course.model().to(course.device), cross_entropy, deals, course.optimizer)
    assert entry.devices == 1
    return BowTraining(
        course.model(),
        cross_entropy,
        course.stream(entry.batch_size, course.data),
        entry.learners,
        ENGINE,
        optimizer=course.optimizer,
        sync=entry.synchroniser(),
        device=course.device,
        seed=course.seed,
    )


def fastest_threads(course: Course, entry: Entry) -> int:
    """Return the number of torch's threads with which a training is fastest, in a short unreported race."""
    counts = thread_counts(entry, course.device)
    if len(counts) == 1:
        return counts[0]
    training, before = make_training(course, entry), torch.get_num_threads()
    run = functools.partial(work, training, course.device)

    def turn(threads: int) -> float:
        torch.set_num_threads(threads)
        return rate(run, TRIAL_S)

    with quiet():
        for threads in counts:
            torch.set_num_threads(threads)
            warm_up(run)
        rates = take_turns({threads: functools.partial(turn, threads) for threads in counts}, TRIAL_TURNS)
    torch.set_num_threads(before)
    training.close()
    return max(counts, key=lambda threads: statistics.median(rates[threads]))


def thread_counts(entry: Entry, device: torch.device) -> tuple[int, ...]:
    """One thread if there is a learner for every core; otherwise also more threads, for the idle cores."""
    cores = len(available_cores())
    return (1, cores) if (entry.learners or 1) < cores and device.type == "cpu" else (1,)


def work(training: Training, device: torch.device) -> int:
    """Run a piece of endless work; returns the number of samples."""
    samples = sum(training() for _ in range(CALLS_CUDA if device.type == "cuda" else 1))
    wait_for(device)
    return samples


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings about restarts of diverged learners."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has completed its work; nothing to do for a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def accuracy_of(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return the accuracy of a model, and restore its mode."""
    was_training, accuracy = model.training, Accuracy()
    model.eval()
    for inputs, targets in evaluation_batches(data):
        accuracy.update(model(inputs), targets)
    model.train(was_training)
    return accuracy.compute()
