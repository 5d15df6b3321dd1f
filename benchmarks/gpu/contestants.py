"""Who takes part in `python -m benchmarks gpu`: PyTorch as it is, compiled, and graphed by hand; and bow.

All of them train the same model by SGD with momentum on the same tensors on the device. Nobody reads a loss.
"""

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

import bow
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.workloads import SGD, Data, Feed, Workload
from bow.data import open_stream
from bow.devices import StreamDevice
from bow.engines import Stacked
from bow.schedule import Schedule
from bow.sync import SMA, Synchroniser
from bow.training import Replicas

WARM_UP = 3

MOST_ROUNDS = 64  # That are issued at once, if the engine takes so many

ENDLESS = 2**40  # Rounds that a stream is told will be taken

Mode: TypeAlias = Literal["default", "reduce-overhead"]


class PlainTraining:
    """PyTorch: one model, one batch at a time."""

    def __init__(
        self, device: StreamDevice, workload: Workload, data: Data, batch_size: int, compile: Mode | None = None
    ) -> None:
        self._loss = workload.loss
        self._batch_size = batch_size
        self._mode = compile
        with device.issuing():
            self.model = workload.model().to(device.torch_device)
            self.optimizer = SGD(self.model.parameters())
            self.feed = Feed(device, data, batch_size)
        self._forward: Any = self.model if compile is None else torch.compile(self.model, dynamic=False, mode=compile)

    def __call__(self) -> int:
        """Train on one batch; returns its samples."""
        if self._mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        self.learn(*self.feed.batch())
        return self._batch_size

    def learn(self, inputs: Tensor, targets: Tensor) -> None:
        """One whole step."""
        self.optimizer.zero_grad()
        loss = self._loss(self._forward(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def close(self) -> None:
        """Nothing runs on."""


class GraphedTraining:
    """PyTorch as an expert writes it for small models: the whole step as one CUDA graph, from gathering to SGD."""

    def __init__(
        self, machine: Machine, workload: Workload, data: Data, batch_size: int, compile: bool = False
    ) -> None:
        self._device, self._batch_size = machine.device, batch_size
        self._stream = self._device.stream("whole step")
        with self._device.issuing():
            machine.branch([self._stream])
            # All memory belongs to that stream, and backward runs on this thread.
            with self._device.on(self._stream), torch.autograd.set_multithreading_enabled(False):
                self._plain = PlainTraining(self._device, workload, data, batch_size, "default" if compile else None)
                self._indices = self._plain.feed.indices().clone()
                for _ in range(WARM_UP):
                    self._step()
                self._plain.optimizer.zero_grad()  # gradients shall be memory of the graph
            with torch.autograd.set_multithreading_enabled(False), self._device.capture(self._stream) as self._graph:
                self._step()

    @property
    def model(self) -> torch.nn.Module:
        """What is trained."""
        return self._plain.model

    def __call__(self) -> int:
        """Train on one batch; returns its samples."""
        with self._device.on(self._stream):
            self._indices.copy_(self._plain.feed.indices())
            self._graph.replay()
        return self._batch_size

    def _step(self) -> None:
        self._plain.learn(*self._plain.feed.gather(self._indices))

    def close(self) -> None:
        """Give the graph's memory back."""
        self._graph.reset()


class BowTraining:
    """bow: several learners, averaged in every round."""

    def __init__(
        self,
        device: StreamDevice,
        workload: Workload,
        data: Data,
        batch_size: int,
        learners: int,
        engine: str,
        sync: Synchroniser | None = None,
        compile: bool = False,
        schedule: Schedule | None = None,
        gathers: bool = True,
        most_rounds: int = MOST_ROUNDS,
    ) -> None:
        self._most_rounds = most_rounds
        self._learners = learners
        self._samples = learners * batch_size
        self.replicas = Replicas(
            workload.model,
            workload.loss,
            optimizer=SGD,
            learners=learners,
            engine=bow.Engine(schedule=schedule).run_by(engine, compile),
            sync=SMA() if sync is None else sync,
            device=device,
        )
        with device.issuing():
            self._stream = open_stream(data, batch_size=batch_size, steps=ENDLESS)
            gathers = gathers and self.replicas.batches.reside(self._stream)
            self._feed = None if gathers else Feed(device, data, batch_size)

    def __call__(self) -> int:
        """Run as many rounds as the engine takes at once, as `bow.train` does; returns their samples."""
        rounds = min(self.replicas.loop.period, self._most_rounds)
        self.replicas.rounds_at_once([self._batches() for _ in range(rounds)])
        return rounds * self._samples

    def _batches(self) -> Any:
        if self._feed is not None:
            return self._feed.stacked(self._learners)
        deal = self._stream.deal(self._learners)
        assert deal is not None
        return Stacked(deal.batches) if deal.stacked else deal.batches

    @property
    def engine(self) -> str:
        """What really runs, after any fallback."""
        return self.replicas.engine

    def loss(self) -> float:
        """The mean loss of the learners in the last round; the device has ended it by then."""
        last = self.replicas.last
        assert last is not None
        return float(last.losses.mean())

    def close(self) -> None:
        """End the threads of an engine that has some."""
        self.replicas.close()


class Training(Protocol):
    """What is timed."""

    def __call__(self) -> int:
        """Issue a piece of work; returns its samples."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Contestant:
    """A training that takes turns with others on one machine; it is warm once it is made."""

    def __init__(self, machine: Machine, make: Callable[[], Training], device: StreamDevice | None = None) -> None:
        self._machine = machine
        self._device = machine.device if device is None else device
        began = time.perf_counter()
        with machine.around():
            self.training: Any = make()
            with self._device.issuing():
                self.training()
                machine.synchronize()
                self.first_call_s = time.perf_counter() - began
                self._call_s = max(1e-7, machine.seconds(self.training, machine.warm_up) / machine.warm_up)

    @property
    def engine(self) -> str | None:
        """What really runs, if it is bow."""
        return self.training.engine if isinstance(self.training, BowTraining) else None

    def loss(self) -> float:
        """The mean loss of the last round, of bow; nothing is under way by then."""
        return float(self.training.loss())

    def turn(self, seconds: float) -> float:
        """Samples per second in a turn of so many seconds, of at least one call."""
        calls = max(1, round(seconds / self._call_s))
        samples = 0

        def call() -> None:
            nonlocal samples
            samples += self.training()

        with self._machine.around(), self._device.issuing():
            took = self._machine.seconds(call, calls)
        self._call_s = took / calls
        return samples / took

    def close(self) -> None:
        """Give everything back."""
        self.training.close()
        del self.training
