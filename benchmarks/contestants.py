"""Trainings that are timed: plain PyTorch, the same compiled, and bow.

All of them train the same model on the same tensors in memory by SGD with momentum, and feed themselves: one
`index_select` per batch (or round) and tensor, in an order that is drawn anew each epoch.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

import bow
from benchmarks.workloads import Data, Workload
from bow.data import BatchStream, open_stream
from bow.engines import EngineName, Loss, Stacked
from bow.sync import SMA
from bow.training import Replicas

LEARNING_RATE, MOMENTUM = 0.001, 0.9  # So small that the weights hardly move, however long the measurement takes

# Fused for everybody: without it, PyTorch updates parameter by parameter on a CPU
SGD = functools.partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)

Tensors: TypeAlias = dict[str, Tensor]


class Feed:
    """Endless batches of data in memory."""

    def __init__(self, data: Data, batch_size: int) -> None:
        self._inputs, self._targets = data
        self._batch_size = batch_size
        self._order = torch.empty(0, dtype=torch.int64)
        self._position = 0

    def next(self) -> Data:
        """A batch."""
        indices = self.next_indices()
        return self._inputs.index_select(0, indices), self._targets.index_select(0, indices)

    def next_indices(self) -> Tensor:
        """Which samples are in the next batch; every one is once an epoch."""
        if self._position + self._batch_size > len(self._order):
            self._order, self._position = torch.randperm(len(self._inputs)), 0
        begin, self._position = self._position, self._position + self._batch_size
        return self._order[begin : self._position]


class PlainTraining:
    """Plain PyTorch: one model, one batch at a time; forward and backward compiled if asked for."""

    def __init__(self, workload: Workload, data: Data, batch_size: int, compile: bool) -> None:
        torch.manual_seed(0)
        self.model = workload.build()
        self._loss = workload.loss
        self._optimizer = SGD(self.model.parameters())
        self._forward = torch.compile(self.model, dynamic=False) if compile else self.model
        self._feed = Feed(data, batch_size)
        self._batch_size = batch_size

    def __call__(self) -> int:
        """Train on one batch; returns its samples."""
        inputs, targets = self._feed.next()
        self._optimizer.zero_grad()
        loss = self._loss(self._forward(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return self._batch_size

    def close(self) -> None:
        """Nothing runs on."""


class StepTraining:
    """PyTorch as an expert writes it for speed: the whole step, SGD with momentum included, compiled as one function.

    Of the guards that `torch.compile` checks at each call, only those on tensors are kept: nothing else changes here,
    and bow leaves checks out as well.
    """

    def __init__(self, workload: Workload, data: Data, batch_size: int) -> None:
        torch.manual_seed(0)
        self.model = workload.build()
        self._parameters: Tensors = {name: p.detach() for name, p in self.model.named_parameters()}
        self._momenta: Tensors = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._buffers: Tensors = dict(self.model.named_buffers())
        self._step = torch.compile(
            make_step(self.model, workload.loss, LEARNING_RATE, MOMENTUM),
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe},
        )
        self._feed = Feed(data, batch_size)
        self._batch_size = batch_size

    def __call__(self) -> int:
        """Train on one batch; returns its samples."""
        self._step(self._parameters, self._momenta, self._buffers, *self._feed.next())
        return self._batch_size

    def close(self) -> None:
        """Nothing runs on."""


class BowTraining:
    """bow: several learners, averaged by `SMA` in every round."""

    def __init__(
        self,
        workload: Workload,
        data: Data,
        batch_size: int,
        learners: int,
        engine: EngineName,
        compile: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.replicas = Replicas(
            workload.build,
            workload.loss,
            optimizer=SGD,
            learners=learners,
            engine=bow.Engine(engine, compile=compile),
            sync=SMA(),
            device="cpu",
        )
        self._learners = learners
        # Endless: `steps` is what the caller says it will take.
        self._stream: BatchStream = open_stream(data, batch_size=batch_size, steps=1)

    def __call__(self) -> int:
        """Run one round; returns its samples."""
        deal = self._stream.deal(self._learners)
        assert deal is not None
        self.replicas.round(Stacked(deal.batches) if deal.stacked else deal.batches)
        return deal.num_samples

    def close(self) -> None:
        """End the threads of an engine that has some."""
        self.replicas.close()

    @property
    def engine(self) -> str:
        """What really runs, after any fallback."""
        return self.replicas.engine


Training: TypeAlias = PlainTraining | StepTraining | BowTraining


def make_training(workload: Workload, data: Data, batch_size: int, implementation: str) -> Training:
    """PyTorch as it is, with forward and backward compiled, or with the whole step compiled."""
    if implementation == "compiled_step":
        return StepTraining(workload, data, batch_size)
    return PlainTraining(workload, data, batch_size, compile=implementation == "compiled")


def make_step(
    model: nn.Module, loss: Loss, lr: float, momentum: float
) -> Callable[[Tensors, Tensors, Tensors, Tensor, Tensor], None]:
    """A whole step as a function of parameters, momenta, buffers, inputs and targets; it changes the first three."""

    def forward(parameters: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensors]:
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        return loss(functional_call(model, {**parameters, **own}, (inputs,)), targets), own

    def step(parameters: Tensors, momenta: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> None:
        differentiate = grad_and_value(forward, has_aux=True)
        gradients, (_, after) = differentiate(parameters, buffers, inputs, targets)
        for name, parameter in parameters.items():
            momenta[name].mul_(momentum).add_(gradients[name])
            parameter.sub_(momenta[name], alpha=lr)
        for name, buffer in buffers.items():
            buffer.copy_(after[name])

    return step
