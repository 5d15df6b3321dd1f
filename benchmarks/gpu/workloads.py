"""What `python -m benchmarks gpu` trains: the papers' networks, on data that lies on the device."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.gpu.machine import place
from bow.devices import StreamDevice
from bow.engines import Loss, Stacked
from bow.models import GoogLeNet, InceptionV3, LeNet, LogisticRegression, ResNet, RNNLanguageModel
from bow.models.convolutional import Branches, ConvNorm
from bow.models.recurrent import sequence_cross_entropy

CLASSES = 10
VOCABULARY, TEXT_LENGTH = 1000, 8
LEARNING_RATE, MOMENTUM = 0.001, 0.9  # So small that the weights hardly move, however long the measurement takes

# Fused for everybody: one kernel for all parameters
SGD = functools.partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)

Data: TypeAlias = tuple[Tensor, Tensor]  # Inputs and targets, `[samples, ...]` each


@dataclass(frozen=True)
class Workload:
    """A model and the shape of what it is trained on."""

    name: str  # as settings have it
    title: str  # for people
    build: Callable[[], nn.Module]  # makes the model
    shape: tuple[int, ...]  # of a sample; of texts, their length
    loss: Loss = cross_entropy  # of outputs and targets
    vocabulary: int | None = None  # of texts, whose every token has a target; None
    most_samples: int | None = None  # that are made, because they are large

    def data(self, samples: int) -> Data:
        """Noise with random labels, in the memory of the host: nothing to learn, so nothing fades out."""
        generator = torch.Generator().manual_seed(0)
        count = samples if self.most_samples is None else min(samples, self.most_samples)
        if self.vocabulary is not None:
            tokens, targets = torch.randint(self.vocabulary, (2, count, *self.shape), generator=generator)
            return tokens, targets
        inputs = torch.randn(count, *self.shape, generator=generator)
        return inputs, torch.randint(CLASSES, (count,), generator=generator)

    def model(self) -> nn.Module:
        """The model, the same one every time."""
        torch.manual_seed(0)
        return self.build()


WORKLOADS = {
    "logistic": Workload("logistic", "logistic regression", lambda: LogisticRegression(784, CLASSES), (1, 28, 28)),
    "lenet": Workload("lenet", "LeNet", lambda: LeNet(CLASSES), (1, 28, 28)),
    "resnet32": Workload("resnet32", "ResNet-32", lambda: ResNet(32, CLASSES), (3, 32, 32)),
    # The published networks on small images: operators that do not fill a large GPU by themselves.
    "googlenet": Workload(
        "googlenet", "GoogLeNet", lambda: GoogLeNet(CLASSES, width=1), (3, 64, 64), most_samples=2048
    ),
    "inception": Workload(
        "inception", "Inception-v3", lambda: InceptionV3(CLASSES, width=1), (3, 75, 75), most_samples=2048
    ),
    "lstm": Workload(
        "lstm",
        "LSTM",
        lambda: RNNLanguageModel(VOCABULARY, hidden=128, layers=4),
        (TEXT_LENGTH,),
        sequence_cross_entropy,
        VOCABULARY,
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
    "logistic": Workload("logistic", "logistic regression", lambda: LogisticRegression(16, CLASSES), (1, 4, 4)),
    "lenet": Workload("lenet", "LeNet", lambda: LeNet(CLASSES, size=4), (1, 4, 4)),
    "resnet32": Workload("resnet32", "ResNet-32", _tiny_network, (3, 4, 4)),
    "googlenet": Workload("googlenet", "GoogLeNet", _tiny_branches, (3, 4, 4)),
    "inception": Workload("inception", "Inception-v3", _tiny_branches, (3, 4, 4)),
    "lstm": Workload("lstm", "LSTM", lambda: RNNLanguageModel(5, hidden=4, layers=2), (2,), sequence_cross_entropy, 5),
}


def workload(name: str, fake: bool) -> Workload:
    """The workload of that name."""
    return (TINY if fake else WORKLOADS)[name]


class Feed:
    """Endless batches of data that lies on the device, in an order that is drawn anew each epoch, for all the same."""

    def __init__(self, device: StreamDevice, data: Data, batch_size: int) -> None:
        self._device = device.torch_device
        self._generator = torch.Generator(self._device).manual_seed(0)
        self._inputs, self._targets = (place(device, tensor) for tensor in data)
        self._batch_size = batch_size
        self._order = torch.empty(0, dtype=torch.int64)
        self._position = 0

    def batch(self) -> Data:
        """A batch."""
        return self.gather(self.indices())

    def indices(self) -> Tensor:
        """Which samples are in the next batch."""
        return self._next(1)

    def gather(self, indices: Tensor) -> Data:
        """These samples."""
        return self._inputs.index_select(0, indices), self._targets.index_select(0, indices)

    def stacked(self, learners: int) -> Stacked:
        """A batch for each learner, `[learners, batch, ...]`."""
        parts = self.gather(self._next(learners))
        return Stacked(tuple(part.view(learners, self._batch_size, *part.shape[1:]) for part in parts))

    def into(self, inputs: Tensor, targets: Tensor) -> None:
        """A batch into memory that is there."""
        indices = self._next(1)
        torch.index_select(self._inputs, 0, indices, out=inputs)
        torch.index_select(self._targets, 0, indices, out=targets)

    def _next(self, batches: int) -> Tensor:
        count = batches * self._batch_size
        if self._position + count > len(self._order):
            orders = [self._epoch()]
            while sum(map(len, orders)) < count:  # a round of many learners may be larger than the data
                orders.append(self._epoch())
            self._order, self._position = torch.cat(orders), 0
        begin, self._position = self._position, self._position + count
        return self._order[begin : self._position]

    def _epoch(self) -> Tensor:
        return torch.randperm(len(self._inputs), generator=self._generator, device=self._device)
