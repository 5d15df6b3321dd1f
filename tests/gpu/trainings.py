"""What the tests on a device train: the models of the engine agreement, small on a GPU and tiny on the fake device."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from benchmarks.gpu.machine import Machine
from bow.models import MLP, LeNet, LogisticRegression, LSTMLanguageModel, ResNet, Transformer, sequence_cross_entropy
from tests.grouped import of_replicas

ENGINES = ("graph", "graph+round", "streams", "fused")


@dataclass(frozen=True)
class Subject:
    """A model, its loss, and what a batch of it looks like."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    batch_size: int
    is_text: bool = False

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        return sequence_cross_entropy if self.is_text else cross_entropy

    def batch(self, seed: int, dtype: torch.dtype, samples: int | None = None) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        count = self.batch_size if samples is None else samples
        if self.is_text:
            first, second = torch.randint(self.classes, (2, count, *self.shape), generator=generator)
            return first, second
        inputs = torch.randn(count, *self.shape, generator=generator, dtype=torch.float64).to(dtype)
        return inputs, torch.randint(self.classes, (count,), generator=generator)


def _dropout_net(size: int, hidden: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, classes))


SMALL = {
    "logistic": Subject(lambda: LogisticRegression(784, 10), (1, 28, 28), 10, 16),
    "mlp": Subject(lambda: MLP(784, 10, (256,)), (1, 28, 28), 10, 16),
    "lenet": Subject(lambda: LeNet(10), (1, 28, 28), 10, 16),
    "resnet8": Subject(lambda: ResNet(8, 10), (3, 32, 32), 10, 16),
    "lstm": Subject(lambda: LSTMLanguageModel(65, 32, 64, layers=2), (20,), 65, 8, is_text=True),
    "transformer": Subject(lambda: Transformer(65, width=32, layers=2, context=20), (20,), 65, 8, is_text=True),
    "dropout": Subject(lambda: _dropout_net(784, 256, 10), (1, 28, 28), 10, 16),
}

TINY = {
    "logistic": Subject(lambda: LogisticRegression(16, 3), (1, 4, 4), 3, 4),
    "mlp": Subject(lambda: MLP(16, 3, (8,)), (1, 4, 4), 3, 4),
    "lenet": Subject(lambda: LeNet(3, size=4), (1, 4, 4), 3, 4),
    "resnet8": Subject(lambda: ResNet(8, 3, width=2), (3, 4, 4), 3, 4),
    "lstm": Subject(lambda: LSTMLanguageModel(7, 4, 4, layers=2), (3,), 7, 2, is_text=True),
    "transformer": Subject(lambda: Transformer(7, width=4, heads=2, layers=1, context=3), (3,), 7, 2, is_text=True),
    "dropout": Subject(lambda: _dropout_net(16, 32, 3), (1, 4, 4), 3, 4),
}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    # Small steps: where a ReLU is at 0, rounding decides on a gradient, and every step that is made of it is one apart.
    "momentum": functools.partial(torch.optim.SGD, lr=0.001, momentum=0.9, weight_decay=1e-3),
    # Nor shall a gradient that is rounding noise around 0 become a step.
    "adamw": functools.partial(torch.optim.AdamW, lr=2e-4, weight_decay=0.05, eps=1e-3),
}


def is_fake(machine: Machine) -> bool:
    return machine.device.torch_device.type == "cpu"


def subject(machine: Machine, name: str) -> Subject:
    return (TINY if is_fake(machine) else SMALL)[name]


def few(machine: Machine, many: int, tiny: int) -> int:
    """A number of rounds and the like."""
    return tiny if is_fake(machine) else many


@contextlib.contextmanager
def training(
    machine: Machine, name: str, engine: str, *, dtype: torch.dtype = torch.float32, **settings: Any
) -> Iterator[bow.Replicas]:
    """A training of a model; it is not compiled where that is a matter of the engine."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")
        replicas = made(machine, name, engine, dtype=dtype, **settings)
        try:
            yield replicas
        finally:
            replicas.close()


def made(
    machine: Machine, name: str, engine: str, *, dtype: torch.dtype = torch.float32, **settings: Any
) -> bow.Replicas:
    torch.manual_seed(0)
    trained = subject(machine, name)
    settings = {"optimizer": OPTIMIZERS["momentum"], "learners": 2, "loss": trained.loss, **settings}
    if engine == "graph":
        settings["capture"] = "learner"  # by itself it is a whole round where there is one learner
    if "step" in settings:
        del settings["loss"]
    return bow.Replicas(trained.build().to(dtype), **of_replicas(engine=engine, device=machine.device, **settings))  # type: ignore[arg-type]


def batches(
    machine: Machine, name: str, round_index: int, learners: int, dtype: torch.dtype = torch.float32
) -> list[Any]:
    """The batches of a round."""
    trained = subject(machine, name)
    return [trained.batch(100 * round_index + j, dtype) for j in range(learners)]


def weights(machine: Machine, replicas: bow.Replicas) -> Tensor:
    """The rows of all learners and the central model, on the host, once all is over."""
    replicas.training_state()  # waits for rounds that are under way
    machine.synchronize()
    return torch.cat([replicas.W.detach().cpu(), replicas.z.detach().cpu().unsqueeze(0)]).clone()


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """No TF32, and the same algorithms of cuDNN every time."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
