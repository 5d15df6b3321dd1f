"""Timed trainings, each implemented once: plain PyTorch, compiled, as one compiled step, as a CUDA graph; and bow.

All of them train the same model on the same tensors in memory, with one `index_select` per batch (or round) and
tensor, in an order that is reshuffled each epoch. A call trains on a batch (bow: on as many rounds as it issues at
once) and returns the number of samples; 0 at the end of the data. Losses are not read.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

import bow
from bow.data import BatchStream, Stacked, batch_of
from bow.devices import Stream, StreamDevice
from bow.engines import EngineName, Loss
from bow.replicas import OptimizerFactory
from bow.sync import SMA, Synchroniser
from bow.training import Replicas

LEARNING_RATE, MOMENTUM = 0.001, 0.9  # small enough that weights hardly change in long measurements

# Fused for all: otherwise PyTorch updates parameters one by one on a CPU.
SGD = functools.partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)

WARM_UP = 3  # steps before a capture, which may not include first allocations or lazy initialisation of libraries
MOST_ROUNDS = 64  # maximum number of rounds issued at once, if the engine supports it
ENDLESS = 2**40  # number of rounds that a stream is prepared for

Data: TypeAlias = tuple[Tensor, Tensor]  # inputs and targets, `[samples, ...]` each
Tensors: TypeAlias = dict[str, Tensor]
Step: TypeAlias = Callable[[Tensors, Tensors, Tensors, Tensor, Tensor], None]  # made by `compiled_step`


class Feed:
    """Endless batches of tensors, on their device; the incomplete batch of an epoch is dropped."""

    epochs = 0

    def __init__(self, data: Data, batch_size: int, seed: int = 0, is_last: bool = False) -> None:
        self._inputs, self._targets = data
        self._is_last = is_last  # whether images are to have the order of torch.channels_last
        self._generator = torch.Generator(self._inputs.device).manual_seed(seed)
        self._batch_size = min(batch_size, len(self._inputs))
        self._order = torch.empty(0, dtype=torch.int64)
        self._position = 0

    def __iter__(self) -> Iterator[Data]:
        while True:
            yield self.next()

    def next(self) -> Data:
        return self.gather(self.indices())

    def indices(self, batches: int = 1) -> Tensor:
        """Return the sample indices of the next batches; each sample occurs once per epoch."""
        count = batches * self._batch_size
        if self._position + count > len(self._order):
            orders = [self._epoch()]
            while sum(map(len, orders)) < count:  # a round of many learners may be larger than the data
                orders.append(self._epoch())
            self._order, self._position = torch.cat(orders), 0
        begin, self._position = self._position, self._position + count
        return self._order[begin : self._position]

    def gather(self, indices: Tensor) -> Data:
        inputs, targets = self._inputs.index_select(0, indices), self._targets.index_select(0, indices)
        return (inputs.to(memory_format=torch.channels_last) if self._is_last else inputs), targets

    def stacked(self, learners: int) -> Stacked:
        """Return a batch for each learner, `[learners, batch, ...]`."""
        parts = self.gather(self.indices(learners))
        return Stacked(tuple(part.view(learners, self._batch_size, *part.shape[1:]) for part in parts))

    def into(self, inputs: Tensor, targets: Tensor) -> None:
        """Copy a batch into existing memory."""
        indices = self.indices()
        torch.index_select(self._inputs, 0, indices, out=inputs)
        torch.index_select(self._targets, 0, indices, out=targets)

    def _epoch(self) -> Tensor:
        return torch.randperm(len(self._inputs), generator=self._generator, device=self._inputs.device)


class Deals:
    """The batches of bow's own stream, one at a time, until it ends."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream
        self.epochs = 0

    def next(self) -> Data | None:
        """Return a batch; None at the end of the data."""
        deal = self._stream.deal(1)
        if deal is None:
            return None
        self.epochs = deal.epochs
        batch: Any = batch_of(deal.batches, 0)
        inputs, targets = batch
        return inputs, targets


class Training(Protocol):
    """A training to time."""

    @property
    def model(self) -> nn.Module:
        """The current model, for evaluation."""
        ...

    @property
    def engine(self) -> str | None:
        """The engine in use, for bow."""
        ...

    @property
    def epochs(self) -> int:
        """Completed epochs, if the feed counts them."""
        ...

    def __call__(self) -> int:
        """Issue some work; returns the number of samples."""
        ...

    def close(self) -> None:
        """Free all resources."""
        ...


class PlainTraining:
    """Plain PyTorch: one model, one batch at a time; forward and backward compiled in one of torch's modes."""

    engine = None

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        feed: Feed | Deals,
        optimizer: OptimizerFactory = SGD,
        compile: str | None = None,
        autocast: bool = False,
    ) -> None:
        self.model, self.feed, self.optimizer = model, feed, optimizer(model.parameters())
        self._precision = bfloat16 if autocast else contextlib.nullcontext
        self._loss, self._marks_steps = loss, compile == "reduce-overhead"
        self.forward: Any = model if compile is None else torch.compile(model, dynamic=False, mode=compile)

    @property
    def epochs(self) -> int:
        return self.feed.epochs

    def __call__(self) -> int:
        if self._marks_steps:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        batch = self.feed.next()
        if batch is None:
            return 0
        self.learn(*batch)
        return len(batch[1])

    def learn(self, inputs: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad()
        with self._precision():
            loss = self._loss(self.forward(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def close(self) -> None:
        """Nothing to close."""


class StepTraining:
    """Expert PyTorch, optimised for speed: the whole step, SGD included, compiled as one function."""

    engine = None
    epochs = 0

    def __init__(self, model: nn.Module, feed: Feed, step: Step, autocast: bool = False) -> None:
        self._precision = bfloat16 if autocast else contextlib.nullcontext
        self.model, self.feed = model, feed
        self._parameters: Tensors = {name: p.detach() for name, p in model.named_parameters()}
        self._momenta: Tensors = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._buffers: Tensors = dict(model.named_buffers())
        self._step = step

    def __call__(self) -> int:
        inputs, targets = self.feed.next()
        with self._precision():
            self._step(self._parameters, self._momenta, self._buffers, inputs, targets)
        return len(targets)

    def close(self) -> None:
        """Nothing to close."""


class GraphedTraining:
    """Expert PyTorch for small models: the whole step as one CUDA graph, from gathering to SGD."""

    engine = None
    epochs = 0

    def __init__(
        self,
        device: StreamDevice,
        make_plain: Callable[[], PlainTraining],
    ) -> None:
        self._device, self._stream = device, device.stream("whole step")
        with device.issuing():
            branch(device, [self._stream])
            # All memory is allocated on that stream, and backward runs on this thread.
            with device.on(self._stream), torch.autograd.set_multithreading_enabled(False):
                self._plain = make_plain()
                assert isinstance(self._plain.feed, Feed)
                self.feed: Feed = self._plain.feed
                self._indices = self.feed.indices().clone()
                for _ in range(WARM_UP):
                    self._step()
                    self._indices.copy_(self.feed.indices())
                self._plain.optimizer.zero_grad()  # allocate gradients in the memory of the graph
            with torch.autograd.set_multithreading_enabled(False), device.capture(self._stream) as self._graph:
                self._step()

    @property
    def model(self) -> nn.Module:
        return self._plain.model

    def __call__(self) -> int:
        with self._device.on(self._stream):
            self._indices.copy_(self.feed.indices())
            self._graph.replay()
        return len(self._indices)

    def _step(self) -> None:
        self._plain.learn(*self.feed.gather(self._indices))

    def close(self) -> None:
        """Free the graph's memory."""
        self._graph.reset()


class BowTraining:
    """bow: several learners on one device, averaged by `SMA` in every round by default.

    If the engine does not gather batches itself, they come from `make_feed`, or without that from the stream.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        stream: BatchStream,
        learners: int,
        engine: EngineName | bow.Engine = "graph",
        *,
        optimizer: OptimizerFactory = SGD,
        sync: Synchroniser | None = None,
        device: Any = "cpu",
        seed: int = 0,
        make_feed: Callable[[], Feed] | None = None,
        resides: bool = True,
        most_rounds: int = MOST_ROUNDS,
    ) -> None:
        self.replicas = Replicas(
            model,
            loss,
            optimizer=optimizer,
            learners=learners,
            engine=engine,
            sync=SMA() if sync is None else sync,
            device=device,
            seed=seed,
        )
        self.epochs = 0
        self._most_rounds, self._stream = most_rounds, stream
        with device.issuing() if isinstance(device, StreamDevice) else contextlib.nullcontext():
            gathers = resides and self.replicas.batches.reside(stream)
            self._feed = None if gathers or make_feed is None else make_feed()

    def __call__(self) -> int:
        rounds: list[Any] = []
        samples, epochs, learners = 0, self.epochs, self.replicas.learners
        most = min(self.replicas.loop.period, self._most_rounds)
        while len(rounds) < most and epochs == self.epochs:
            if self._feed is not None:
                rounds.append(self._feed.stacked(learners))
                samples += rounds[-1].value[1].shape[:2].numel()
                continue
            deal = self._stream.deal(learners)
            if deal is None:
                break
            rounds.append(deal.batches)
            samples, epochs = samples + deal.num_samples, deal.epochs
        self.epochs = epochs
        if rounds:
            self.replicas.rounds_at_once(rounds)
        return samples

    @property
    def model(self) -> nn.Module:
        return self.replicas.central

    @property
    def engine(self) -> str:
        return self.replicas.engine

    def loss(self) -> float:
        """Return the mean loss of the learners in the last round; synchronises with the device."""
        assert self.replicas.last is not None
        return float(self.replicas.last.losses.mean())

    def close(self) -> None:
        """Stop the engine's threads."""
        self.replicas.close()


def compiled_step(model: nn.Module, loss: Loss, lr: float = LEARNING_RATE) -> Step:
    """Return a step as a function of parameters, momenta, buffers, inputs and targets; it updates the first three."""

    def forward(parameters: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensors]:
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        return loss(functional_call(model, {**parameters, **own}, (inputs,)), targets), own

    def step(parameters: Tensors, momenta: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> None:
        differentiate = grad_and_value(forward, has_aux=True)
        gradients, (_, after) = differentiate(parameters, buffers, inputs, targets)
        for name, parameter in parameters.items():
            momenta[name].mul_(MOMENTUM).add_(gradients[name])
            parameter.sub_(momenta[name], alpha=lr)
        for name, buffer in buffers.items():
            buffer.copy_(after[name])

    # Keep only the guards on tensors, which are checked at each call: nothing else changes here, and bow skips such
    # checks as well.
    guards = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
    return torch.compile(step, fullgraph=True, dynamic=False, options=dict(guards))


def bfloat16() -> contextlib.AbstractContextManager[Any]:
    """Autocast on a CPU, for one step: what it keeps of the weights holds until it ends."""
    return torch.autocast("cpu", torch.bfloat16)


def branch(device: StreamDevice, streams: Sequence[Stream]) -> None:
    """Let these streams wait for the work that the caller has issued."""
    begun = device.event("the caller is through")
    device.caller().record(begun)
    for stream in streams:
        stream.wait(begun)
