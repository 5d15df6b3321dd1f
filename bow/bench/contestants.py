"""What `bow bench engines` lets compete: plain PyTorch, the same compiled, and bow.

All of them train the same model on the same tensors in memory by SGD with momentum, and feed themselves: one
`index_select` per batch (or round) and tensor, in an order that is drawn anew each epoch.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bow.data import BatchStream, open_stream
from bow.engine import EngineName
from bow.models import MLP, LeNet, LogisticRegression
from bow.sync import SMA
from bow.training import Replicas

CLASSES, SIZE = 10, 28
LEARNING_RATE, MOMENTUM = 0.001, 0.9
"""So small that the weights hardly move, however long the measurement takes."""

MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic_regression": functools.partial(LogisticRegression, SIZE * SIZE, CLASSES),
    "mlp": functools.partial(MLP, SIZE * SIZE, CLASSES),
    "lenet": functools.partial(LeNet, CLASSES),
}

SGD = functools.partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM)

Data: TypeAlias = tuple[Tensor, Tensor]
"""Images `[samples, 1, 28, 28]` and labels `[samples]`."""


def make_data(samples: int, seed: int = 0) -> Data:
    """Images of Fashion-MNIST's shape that are noise, with random labels: nothing to learn, so nothing fades out.

    On data that can be learned, gradients shrink until they are denormal numbers, which processors are slow at.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 1, SIZE, SIZE, generator=generator)
    return inputs, torch.randint(CLASSES, (samples,), generator=generator)


class PlainTraining:
    """Plain PyTorch: one model, one batch at a time; forward and backward compiled if asked for.

    Args:
        model: builds the model.
        data: what it is trained on.
        batch_size: samples in a batch.
        compile: compile forward and backward; the optimizer is as it is.
    """

    def __init__(self, model: Callable[[], nn.Module], data: Data, batch_size: int, compile: bool) -> None:
        torch.manual_seed(0)
        self._model = model()
        self._optimizer = SGD(self._model.parameters())
        self._forward = torch.compile(self._model, dynamic=False) if compile else self._model
        self._inputs, self._targets = data
        self._batch_size = batch_size
        self._order = torch.empty(0, dtype=torch.int64)
        self._position = 0

    def __call__(self) -> int:
        """Train on one batch; returns its samples."""
        indices = self._next_indices()
        inputs, targets = self._inputs.index_select(0, indices), self._targets.index_select(0, indices)
        self._optimizer.zero_grad()
        loss = cross_entropy(self._forward(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return self._batch_size

    def _next_indices(self) -> Tensor:
        if self._position + self._batch_size > len(self._order):
            self._order, self._position = torch.randperm(len(self._inputs)), 0
        begin, self._position = self._position, self._position + self._batch_size
        return self._order[begin : self._position]


class BowTraining:
    """bow: several learners, averaged by `SMA` in every round.

    Args:
        model: builds the model.
        data: what it is trained on.
        batch_size: samples per learner and round.
        learners: how many.
        engine: what runs them.
    """

    def __init__(
        self, model: Callable[[], nn.Module], data: Data, batch_size: int, learners: int, engine: EngineName
    ) -> None:
        torch.manual_seed(0)
        self._replicas = Replicas(
            model, cross_entropy, optimizer=SGD, learners=learners, engine=engine, sync=SMA(), device="cpu"
        )
        self._learners = learners
        # Endless: `steps` is what the caller says it will take.
        self._stream: BatchStream = open_stream(data, batch_size=batch_size, steps=1)

    def __call__(self) -> int:
        """Run one round; returns its samples."""
        deal = self._stream.deal(self._learners)
        assert deal is not None
        self._replicas.round(deal.batches)
        return deal.num_samples

    @property
    def engine(self) -> str:
        """What really runs, after any fallback."""
        return self._replicas.engine
