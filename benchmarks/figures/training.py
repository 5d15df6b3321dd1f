"""The trainings that are measured, plain PyTorch's and bow's, on any one device and from the same stream of batches."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.figures.entries import Entry
from bow.data import BatchStream, evaluation_batches, open_stream
from bow.engines import EngineName, Stacked
from bow.replicas import OptimizerFactory
from bow.training import Accuracy, Replicas

ENGINE: EngineName = "graph"  # Of bow: the native runtime on a CPU, CUDA graphs on a GPU

MOST_ROUNDS = 64  # That are issued at once, if the engine takes so many


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


class Stretch(NamedTuple):
    """A piece of training."""

    num_samples: int  # in all batches together
    epochs: int  # completed since training began


class Training(Protocol):
    """What is measured."""

    @property
    def model(self) -> nn.Module:
        """What training has come to, to be evaluated: the central model, or the one there is."""
        ...

    @property
    def engine(self) -> str | None:
        """The engine of bow that really runs, after any fallback."""
        ...

    def advance(self) -> Stretch | None:
        """Issue a piece of work that does not go beyond an epoch; None when the data have ended."""
        ...

    def close(self) -> None:
        """End the threads of an engine that has some."""
        ...


class PlainTraining:
    """Plain PyTorch: one model, one batch at a time, from samples in the device's memory."""

    engine = None

    def __init__(self, course: Course, batch_size: int) -> None:
        self._model = course.model().to(course.device)
        self._optimizer = course.optimizer(self._model.parameters())
        inputs, targets = course.data
        self._stream = course.stream(batch_size, (inputs.to(course.device), targets.to(course.device)))

    @property
    def model(self) -> nn.Module:
        """What is trained."""
        return self._model

    def advance(self) -> Stretch | None:
        """Train on one batch."""
        deal = self._stream.deal(1)
        if deal is None:
            return None
        inputs, targets = (part[0] for part in deal.batches) if deal.stacked else deal.batches[0]
        self._optimizer.zero_grad()
        cross_entropy(self._model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return Stretch(deal.num_samples, deal.epochs)

    def close(self) -> None:
        """Nothing runs on."""


class BowTraining:
    """bow: several learners on one device."""

    def __init__(self, course: Course, entry: Entry) -> None:
        assert entry.learners is not None
        assert entry.devices == 1
        self._learners = entry.learners
        self._replicas = Replicas(
            course.model(),
            cross_entropy,
            optimizer=course.optimizer,
            learners=entry.learners,
            engine=ENGINE,
            sync=entry.synchroniser(),
            device=course.device,
            seed=course.seed,
        )
        self._stream = course.stream(entry.batch_size, course.data)
        self._replicas.batches.reside(self._stream)
        self._epochs = 0

    @property
    def model(self) -> nn.Module:
        """The central model."""
        return self._replicas.central

    @property
    def engine(self) -> str | None:
        """The engine that really runs, after any fallback."""
        return self._replicas.engine

    def advance(self) -> Stretch | None:
        """Run as many rounds as the engine takes at once, as `bow.train` does."""
        rounds: list[Any] = []
        samples, epochs = 0, self._epochs
        most = min(self._replicas.loop.period, MOST_ROUNDS)
        while len(rounds) < most and epochs == self._epochs and (deal := self._stream.deal(self._learners)) is not None:
            rounds.append(Stacked(deal.batches) if deal.stacked else deal.batches)
            samples, epochs = samples + deal.num_samples, deal.epochs
        if not rounds:
            return None
        self._epochs = epochs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a learner that diverges starts again from the central model
            self._replicas.rounds_at_once(rounds)
        return Stretch(samples, epochs)

    def close(self) -> None:
        """End the threads of the engine."""
        self._replicas.close()


def make_training(course: Course, entry: Entry) -> Training:
    """The training of plain PyTorch or of bow."""
    return PlainTraining(course, entry.batch_size) if entry.learners is None else BowTraining(course, entry)


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
