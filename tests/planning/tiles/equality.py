"""Whether a strategy trains as one device does."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bow.planning.problem.partition import Partition, Split, everything_on
from bow.planning.tiles import CapturedOperators, ProcessGroup, TileRuntime, capture_operators

STEPS = 5
TOLERANCE = 1e-9
SGD = functools.partial(torch.optim.SGD, lr=0.1)


@dataclass(frozen=True)
class Task:
    """What is trained, in float64.

    Attributes:
        name: for messages.
        model: as it begins.
        batch: the same in every step.
        loss: `loss(outputs, targets) -> scalar`.
        optimizer: makes one.
        captured: the step.
    """

    name: str
    model: nn.Module
    batch: Any
    loss: Callable[[Any, Any], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]
    captured: CapturedOperators

    def strategy(self, splits: Any, learners: int = 1) -> Partition:
        return Partition(self.captured.graph.hash, tuple(splits), learners)


@dataclass(frozen=True)
class Course:
    """How a training went.

    Attributes:
        losses: of all steps.
        first: the gradients of the first step.
        last: those of the last step.
        state: the model's state behind it.
    """

    losses: list[Tensor]
    first: Mapping[str, Tensor]
    last: Mapping[str, Tensor]
    state: Mapping[str, Tensor]


def task(
    name: str, model: nn.Module, batch: Any, loss: Callable[[Any, Any], Tensor], optimizer: Callable[..., Any]
) -> Task:
    """A task, converted to float64."""
    model = model.double()
    batch = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, batch)
    return Task(name, model, batch, loss, optimizer, capture_operators(model, batch, loss))


def on_one_device(
    captured: CapturedOperators, model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer] = SGD
) -> TileRuntime:
    """A step with every operator whole, on the device of this process."""
    strategy = Partition(captured.graph.hash, everything_on(captured.graph))
    return TileRuntime(captured, strategy, model, optimizer)


def by_pytorch(given: Task, steps: int = STEPS) -> Course:
    """The training on one device, without any of bow's."""
    model = copy.deepcopy(given.model)
    optimizer = given.optimizer(model.parameters())
    losses, gradients = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = given.loss(model(given.batch[0]), given.batch[1])
        loss.backward()
        losses.append(loss.detach())
        found = {name: parameter.grad for name, parameter in model.named_parameters()}
        gradients.append({name: gradient.clone() for name, gradient in found.items() if gradient is not None})
        optimizer.step()
    return Course(losses, gradients[0], gradients[-1], model.state_dict())


def by_tiles(given: Task, strategy: Partition, group: ProcessGroup, steps: int = STEPS, **settings: Any) -> Course:
    """The training under a strategy."""
    runtime = TileRuntime(given.captured, strategy, given.model, given.optimizer, group, **settings)
    losses, gradients = [], []
    for index in range(steps):
        losses.append(runtime.step(given.batch, index))
        if index in (0, steps - 1):
            gradients.append(runtime.gradients())
    model = copy.deepcopy(given.model)
    runtime.gather_into(model)
    return Course(losses, gradients[0], gradients[-1], model.state_dict())


def difference(one: Course, other: Course) -> float:
    """The largest difference, of every tensor relative to its largest value.

    A gradient that is nothing but rounding, as of a bias in front of batch norm, is compared with the largest of all.
    """
    worst = [float((a - b).abs() / b.abs()) for a, b in zip(one.losses, other.losses, strict=True)]
    for mine, theirs in ((one.first, other.first), (one.last, other.last), (one.state, other.state)):
        assert mine.keys() == theirs.keys()
        least = 1e-3 * max(float(value.abs().max()) for value in theirs.values() if value.is_floating_point())
        for name, value in theirs.items():
            if not value.is_floating_point():
                assert torch.equal(mine[name], value), name
                continue
            scale = max(least, float(value.abs().max()))
            worst.append(float((mine[name] - value).abs().max()) / scale)
    return max(worst)


@dataclass(frozen=True)
class Trial:
    """A training under a strategy, and what it should be.

    Attributes:
        name: for messages.
        task: what is trained.
        splits: by operator.
        expected: the training on one device.
    """

    name: str
    task: Task
    splits: tuple[Split, ...]
    expected: Course

    def difference(self, group: ProcessGroup, **settings: Any) -> float:
        """How far the training is from what it should be."""
        return difference(by_tiles(self.task, self.task.strategy(self.splits), group, **settings), self.expected)
