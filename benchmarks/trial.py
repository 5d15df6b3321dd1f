"""One training of the sweep."""

import functools
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from bow.data import DataSplits, digits, open_stream
from bow.errors import DivergenceError
from bow.models import MLP, LeNet
from bow.sync import SMA
from bow.training import Accuracy, Replicas
from bow.training.evaluation import Evaluator

BATCH_SIZE = 16
MOMENTUM = 0.9
LAST_EPOCHS = 3  # The accuracy of a training is the median of so many epochs at its end

MODELS: dict[str, Callable[[], nn.Module]] = {
    "lenet": functools.partial(LeNet, classes=10, channels=1, size=8),
    "mlp": functools.partial(MLP, in_features=64, classes=10, hidden=(256,)),
}


@dataclass(frozen=True)
class Point:
    """What is varied: one training."""

    model: str  # a name in `MODELS`
    learners: int  # how many train side by side
    mu: float | None  # momentum of the central model; None with one learner, where it has no effect
    lr: float  # learning rate
    seed: int  # of initialisation and shuffling


@dataclass(frozen=True)
class Trial:
    """What came out of a training."""

    point: Point  # what was trained
    accuracies: tuple[float, ...]
    diverged: bool  # whether training ended with a `DivergenceError`
    restarts: int  # how often a single learner diverged and started again from the central model
    seconds: float  # how long it took

    @property
    def accuracy(self) -> float:
        """The median of the last epochs; 0 when training diverged."""
        return 0.0 if self.diverged else statistics.median(self.accuracies[-LAST_EPOCHS:])

    def epochs_to(self, accuracy: float) -> float:
        """The first epoch after which the central model had this accuracy; infinity if there was none."""
        hits = (epoch for epoch, value in enumerate(self.accuracies, 1) if value >= accuracy)
        return next(hits, float("inf"))

    def measured(self) -> dict[str, Any]:
        """The outcome as plain values."""
        return {
            "accuracy": round(self.accuracy, 4),
            "diverged": self.diverged,
            "restarts": self.restarts,
            "seconds": round(self.seconds, 2),
            "accuracies": [round(value, 4) for value in self.accuracies],
        }


def train(point: Point, epochs: int) -> Trial:
    """Train one point on the digits."""
    splits, loss = data(), nn.functional.cross_entropy
    torch.manual_seed(point.seed)
    replicas = Replicas(
        MODELS[point.model],
        loss,
        optimizer=functools.partial(torch.optim.SGD, lr=point.lr, momentum=MOMENTUM),
        learners=point.learners,
        engine="eager",
        sync=SMA() if point.mu is None else SMA(mu=point.mu),
        device="cpu",
        seed=point.seed,
    )
    evaluate = Evaluator(splits.validation, loss, (Accuracy(),), None)
    stream = open_stream(splits.train, batch_size=BATCH_SIZE, epochs=epochs, seed=point.seed)
    accuracies: list[float] = []
    began = time.perf_counter()
    diverged = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # restarts of learners are counted below
        try:
            while (deal := stream.deal(point.learners)) is not None:
                replicas.round(deal.batches)
                if deal.epochs > len(accuracies):
                    accuracies.append(evaluate(replicas.central, replicas.device, replicas.loop.settings)["accuracy"])
        except DivergenceError:
            diverged = True
    return Trial(point, tuple(accuracies), diverged, replicas.loop.num_restarts, time.perf_counter() - began)


@functools.cache
def data() -> DataSplits:
    """The digits, read once in a process."""
    return digits()


def trial_of(values: Mapping[str, Any]) -> Trial:
    """The trial of what `asdict(point) | measured()` is."""
    point = Point(*(values[field.name] for field in fields(Point)))
    return Trial(point, tuple(values["accuracies"]), values["diverged"], values["restarts"], values["seconds"])
