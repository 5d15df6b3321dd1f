"""Models to time, their losses, and data without anything to learn."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.trainings import Data
from bow.engines import Loss
from bow.models import MLP, LeNet, LogisticRegression, LSTMLanguageModel, ResNet, sequence_cross_entropy

CLASSES = 10
VOCABULARY, LENGTH = 65, 20


@dataclass(frozen=True)
class Workload:
    """A model and its training data."""

    title: str  # display name
    build: Callable[[], nn.Module]  # makes the model
    make_data: Callable[[int], Data]  # makes a number of samples
    loss: Loss = cross_entropy  # of outputs and targets
    learners: tuple[int, ...] = (1, 2, 4, 8)  # numbers of learners to try if they run concurrently
    fused: int = 4  # number of learners to try if they are fused; a single number, because each is compiled separately

    def model(self, seed: int = 0) -> nn.Module:
        """Return the model, the same for every call with that seed."""
        torch.manual_seed(seed)
        return self.build()


def noise_images(samples: int, channels: int, size: int, seed: int = 0) -> Data:
    """Return noise images with random labels: with nothing to learn, gradients do not vanish.

    On data that can be learned, gradients shrink until they are denormal numbers, which processors are slow at.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, channels, size, size, generator=generator)
    return inputs, torch.randint(CLASSES, (samples,), generator=generator)


def noise_text(samples: int, seed: int = 0, vocabulary: int = VOCABULARY, length: int = LENGTH) -> Data:
    """Return sequences of random tokens with random targets: see `noise_images`."""
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randint(vocabulary, (2, samples, length), generator=generator)
    return first, second


GREY = functools.partial(noise_images, channels=1, size=28)
COLOR = functools.partial(noise_images, channels=3, size=32)

WORKLOADS: dict[str, Workload] = {
    "logistic_regression": Workload(
        "logistic regression", functools.partial(LogisticRegression, 28 * 28, CLASSES), GREY, fused=8
    ),
    "mlp": Workload("MLP", functools.partial(MLP, 28 * 28, CLASSES), GREY),
    "lenet": Workload("LeNet", functools.partial(LeNet, CLASSES), GREY),
    "resnet8": Workload("ResNet-8", functools.partial(ResNet, 8, CLASSES), COLOR, learners=(1, 2, 4), fused=2),
    "lstm": Workload(
        "LSTM",
        functools.partial(LSTMLanguageModel, VOCABULARY, embedding=64, hidden=128, layers=2),
        noise_text,
        sequence_cross_entropy,
        learners=(1, 2, 4),
        fused=2,
    ),
}
