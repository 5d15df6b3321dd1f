"""Models, batches and an eager reference for the tests of step graphs."""

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bow
from bow.graph import StepGraph
from bow.models import LSTMLanguageModel, ResNet, Transformer, sequence_cross_entropy

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[Any, Any], Tensor]
    mkldnn: bool = True


def _images() -> Batch:
    return torch.randn(2, 3, 16, 16), torch.randint(10, (2,))


def _tokens(samples: int = 3, length: int = 5) -> Batch:
    inputs, targets = torch.randint(20, (2, samples, length))
    return inputs, targets


PAPER_MODELS = {
    "resnet14": Case(lambda: ResNet(14, width=8), _images, F.cross_entropy),
    "lstm": Case(
        lambda: LSTMLanguageModel(20, 16, 32, layers=2), lambda: _tokens(2, 3), sequence_cross_entropy, mkldnn=False
    ),
    "transformer": Case(lambda: Transformer(20, context=8), _tokens, sequence_cross_entropy),
}


@functools.cache
def captured(name: str) -> tuple[nn.Module, StepGraph]:
    """A model of the papers and its graph, captured once for all tests."""
    torch.manual_seed(0)
    case = PAPER_MODELS[name]
    model = case.build()
    return model, bow.capture(model, case.batch(), case.loss)


@contextlib.contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says about Intel GPUs whenever the flag is touched
        with torch.backends.mkldnn.flags(enabled=enabled):
            yield


@dataclass(frozen=True)
class Eager:
    """Loss, gradients and buffers of one step by ordinary autograd, on a copy of the model."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]

    @classmethod
    def step(cls, model: nn.Module, step: Callable[[nn.Module], Tensor]) -> "Eager":
        learner = copy.deepcopy(model)
        loss = step(learner)
        loss.backward()
        gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in learner.named_parameters()}
        trained = {name for name, parameter in learner.named_parameters() if parameter.requires_grad}
        return cls(loss.detach(), {n: g for n, g in gradients.items() if n in trained}, dict(learner.named_buffers()))


def state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return dict(model.named_parameters()), dict(model.named_buffers())


def assert_equal(outputs: Any, eager: Eager) -> None:
    """Loss, every gradient and every buffer are the same to the last bit."""
    assert torch.equal(outputs.loss, eager.loss)
    for made, expected in ((outputs.gradients, eager.gradients), (outputs.buffers, eager.buffers)):
        assert made.keys() == expected.keys()
        assert [name for name in expected if not torch.equal(made[name], expected[name])] == []


class Remembering(nn.Module):
    """Keeps a copy of its weights as they are before the step, whole and in part."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("before", torch.zeros(width, width))
        self.register_buffer("row", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        made = self.linear(x) + 0.1 * x @ self.before + self.row
        self.before = self.linear.weight.detach().clone()
        self.row = self.linear.weight[1].detach().clone()
        return made


class Delayed(nn.Linear):
    """Keeps the value that another buffer had before."""

    def __init__(self) -> None:
        super().__init__(6, 3, dtype=torch.float64)
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("mean_before", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        self.mean_before.copy_(self.mean)
        self.mean.copy_(outputs.detach().mean(0))
        return outputs + 0.1 * self.mean_before


class Branching(nn.Linear):
    """Cannot be captured: it looks at its results."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        return made if made.sum() > 0 else -made


class Averaging(nn.Linear):
    """Keeps a running mean, and the one before it, by assigning new tensors to its buffers."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("mean_before", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        mean, before = 0.9 * self.mean + 0.1 * x.detach().mean(0), self.mean_before
        self.mean_before = self.mean
        self.mean = mean
        return super().forward(x - mean - before)
