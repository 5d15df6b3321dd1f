"""What is trained on a GPU: the papers' networks, on noise that lies on the device."""

import functools
from collections.abc import Callable

from torch import nn

from benchmarks.trainings import Data
from benchmarks.workloads import CLASSES, Workload, noise_images, noise_text
from bow.models import GoogLeNet, InceptionV3, LeNet, LogisticRegression, ResNet, RNNLanguageModel
from bow.models.convolutional import Branches, ConvNorm
from bow.models.recurrent import sequence_cross_entropy

VOCABULARY, TEXT_LENGTH = 1000, 8


def _images(channels: int, size: int, most: int | None = None) -> Callable[[int], Data]:
    """At most so many, because they are large."""
    return lambda samples: noise_images(samples if most is None else min(samples, most), channels, size)


def _texts(vocabulary: int, length: int) -> Callable[[int], Data]:
    return functools.partial(noise_text, vocabulary=vocabulary, length=length)


WORKLOADS = {
    "logistic": Workload("logistic regression", lambda: LogisticRegression(784, CLASSES), _images(1, 28)),
    "lenet": Workload("LeNet", lambda: LeNet(CLASSES), _images(1, 28)),
    "resnet32": Workload("ResNet-32", lambda: ResNet(32, CLASSES), _images(3, 32)),
    # The published networks on small images: operators that do not fill a large GPU by themselves.
    "googlenet": Workload("GoogLeNet", lambda: GoogLeNet(CLASSES, width=1), _images(3, 64, 2048)),
    "inception": Workload("Inception-v3", lambda: InceptionV3(CLASSES, width=1), _images(3, 75, 2048)),
    "lstm": Workload(
        "LSTM",
        lambda: RNNLanguageModel(VOCABULARY, hidden=128, layers=4),
        _texts(VOCABULARY, TEXT_LENGTH),
        sequence_cross_entropy,
    ),
}


def _tiny_network() -> nn.Module:
    """With a convolution and batch norm, too."""
    return nn.Sequential(nn.Conv2d(3, 2, 3, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, CLASSES))


def _tiny_branches() -> nn.Module:
    """Two convolutions side by side, one of them behind another."""
    long = nn.Sequential(ConvNorm(3, 2, 1), ConvNorm(2, 2, 3, padding=1))
    return nn.Sequential(Branches([ConvNorm(3, 2, 1), long]), nn.Flatten(), nn.Linear(64, CLASSES))


# Of the same names, for the fake device
TINY = {
    "logistic": Workload("logistic regression", lambda: LogisticRegression(16, CLASSES), _images(1, 4)),
    "lenet": Workload("LeNet", lambda: LeNet(CLASSES, size=4), _images(1, 4)),
    "resnet32": Workload("ResNet-32", _tiny_network, _images(3, 4)),
    "googlenet": Workload("GoogLeNet", _tiny_branches, _images(3, 4)),
    "inception": Workload("Inception-v3", _tiny_branches, _images(3, 4)),
    "lstm": Workload("LSTM", lambda: RNNLanguageModel(5, hidden=4, layers=2), _texts(5, 2), sequence_cross_entropy),
}


def workload(name: str, fake: bool) -> Workload:
    return (TINY if fake else WORKLOADS)[name]
