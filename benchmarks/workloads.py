"""Models that are timed, their losses, and data with nothing to learn in it."""

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
    """A model and what it is trained on."""

    title: str  # its name, for people
    build: Callable[[], nn.Module]  # makes the model
    make_data: Callable[[int], Data]  # makes so many samples
    loss: Loss = cross_entropy  # of outputs and targets
    learners: tuple[int, ...] = (1, 2, 4, 8)  # how many are tried where they run at the same time
    fused: int = 4  # how many are tried where they run as one; every number is compiled anew, so it is one number

    def model(self, seed: int = 0) -> nn.Module:
        """The model, the same one for everybody with that seed."""
        torch.manual_seed(seed)
        return self.build()


def noise_images(samples: int, channels: int, size: int, seed: int = 0) -> Data:
    """Images that are noise, with random labels: nothing to learn, so nothing fades out.

    On data that can be learned, gradients shrink until they are denormal numbers, which processors are slow at.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, channels, size, size, generator=generator)
    return inputs, torch.randint(CLASSES, (samples,), generator=generator)


def noise_text(samples: int, seed: int = 0, vocabulary: int = VOCABULARY, length: int = LENGTH) -> Data:
    """Sequences of random tokens, each of which is to be followed by random ones: see `noise_images`."""
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
