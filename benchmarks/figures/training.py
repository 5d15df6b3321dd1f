"""The trainings of the figures, plain PyTorch's and bow's, on any one device and from the same stream of batches."""

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

ENGINE: EngineName = "graph"  # of bow: the native runtime on a CPU, CUDA graphs on a GPU
CALLS_CUDA = 32  # pieces of work that are issued to a GPU before it is waited for
TRIAL_TURNS, TRIAL_S = 3, 0.1  # of the race between numbers of threads, before anything is measured


@dataclass(frozen=True)
class Course:
    """What is trained, and on what."""

    build: Callable[[], nn.Module]  # makes the model
    data: tuple[Tensor, Tensor]  # inputs and targets, in the memory of the host
    optimizer: OptimizerFactory  # makes the optimizer
    device: torch.device  # where
    epochs: int | None = None  # after which the data end; None: never
    seed: int = 0  # of initial weights and of the order of samples

    def model(self) -> nn.Module:
        """The model, the same one for everybody."""
        with torch.random.fork_rng(devices=[]):  # it is built in the host's memory
            torch.manual_seed(self.seed)
            return self.build()

    def stream(self, batch_size: int, data: tuple[Tensor, Tensor]) -> BatchStream:
        """Batches of these data, in the same order for everybody."""
        if self.epochs is None:
            return open_stream(data, batch_size=batch_size, steps=1, seed=self.seed)
        return open_stream(data, batch_size=batch_size, epochs=self.epochs, seed=self.seed)


def make_training(course: Course, entry: Entry) -> Training:
    """The training of plain PyTorch or of bow."""
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
    """The number of torch's threads with which a training is fastest, by a short race whose rates are not reported."""
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
    """What has a core for every learner runs with one thread; more threads are for what would leave cores idle."""
    cores = len(available_cores())
    return (1, cores) if (entry.learners or 1) < cores and device.type == "cpu" else (1,)


def work(training: Training, device: torch.device) -> int:
    """Do a piece of endless work; returns its samples."""
    samples = sum(training() for _ in range(CALLS_CUDA if device.type == "cuda" else 1))
    wait_for(device)
    return samples


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A learner that diverges starts again from the central model, and need not say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done what it was told; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def accuracy_of(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """The share of samples that the model gets right; it is left in the mode that it was in."""
    was_training, accuracy = model.training, Accuracy()
    model.eval()
    for inputs, targets in evaluation_batches(data):
        accuracy.update(model(inputs), targets)
    model.train(was_training)
    return accuracy.compute()
