"""A fake device: work runs on the CPU when it is issued, but its ordering is checked as if it ran asynchronously.

Engines for GPUs run on it in tests. It sees every operator (and so every launch, allocation, read and write), keeps
vector clocks of host, streams and graphs, and raises as soon as two conflicting accesses are not ordered by events,
whether or not the result is right. It captures graphs as CUDA does: captured work is not executed, a replay runs
the same operators on the same addresses, and Python code in between is not repeated.

It does not see memory that a kernel reads beyond its arguments, nor time.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from bow.devices.base import CapturedGraph, Event, Stream, StreamDevice
from bow.devices.cores import available_cores
from bow.testing.accesses import CALLER, HOST, AccessLog, MemoryRange, accessed, key_of, tensors_in
from bow.testing.accesses import RaceError as RaceError
from bow.testing.clocks import Clock, merge

_aten: Any = torch.ops.aten

# Operators whose result the host needs, so that it waits for the current stream.
_BLOCKING = {_aten._local_scalar_dense.default, _aten.is_nonzero.default, _aten.equal.default, _aten.nonzero.default}


class CaptureRuleError(RuntimeError):
    """A violation of CUDA's rules for captures and graphs."""


@dataclass(frozen=True)
class Wait:
    """A wait for an event, which a test can suppress."""

    waiting: str  # the stream, or "host"
    event: str  # the event's name


class FakeEvent(Event):
    """An event with a clock."""

    def __init__(self, name: str, device: "FakeDevice") -> None:
        super().__init__(name)
        self._device = device
        self.clock: Clock = {}
        self.recorded_in: _Capture | None = None

    def synchronize(self) -> None:
        """The host learns that all work before the event has ended."""
        device = self._device
        with device.lock:
            if not device.left_out(HOST, self):
                device.log.collect()
                merge(device.log.host, self.clock)

    def query(self) -> bool:
        self.synchronize()
        return True


class FakeStream(Stream):
    """A stream that is an actor of its device."""

    def __init__(self, name: str, device: "FakeDevice") -> None:
        super().__init__(name)
        self._device = device

    def wait(self, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        device, stream = self._device, self.name
        with device.lock:
            left_out = device.left_out(stream, event)
            capture = device._capture
            if capture is not None and event.recorded_in is capture:
                if left_out:
                    return
                merge(capture.clocks.setdefault(stream, {}), event.clock)
                capture.graph.steps.append(_Order(stream, event, waits=True))
            elif capture is not None and stream in capture.clocks:
                raise CaptureRuleError(f"{stream} is being captured and cannot wait for {event.name} outside of it")
            elif not left_out:
                device.log.collect()
                merge(device.log.clock(stream), event.clock)

    def record(self, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        device, stream = self._device, self.name
        with device.lock:
            capture = device._capture
            if capture is not None and stream in capture.clocks:
                event.recorded_in = capture
                clock = capture.clocks[stream]
                clock[stream] = clock.get(stream, 0) + 1
                capture.graph.steps.append(_Order(stream, event, waits=False))
            else:
                event.recorded_in = None
                clock = device.log.clock(stream)
                merge(clock, device.log.host)
            event.clock = dict(clock)


@dataclass
class _GraphStep:
    """One operator of a graph."""

    actor: str
    function: OpOverload
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    made: list[Tensor]
    random: bool
    what: str

    def __post_init__(self) -> None:
        reads, writes = accessed(self.function, self.arguments, self.keywords)
        self.reads, self.writes = list(map(MemoryRange.of, reads)), list(map(MemoryRange.of, [*writes, *self.made]))
        self.given = {key_of(tensor) for tensor in tensors_in((self.arguments, self.keywords))}


@dataclass
class _Order:
    """A wait for, or a record of, an event in a graph."""

    actor: str
    event: FakeEvent
    waits: bool


class FakeGraph(CapturedGraph):
    """A captured graph: operators to replay on the same memory."""

    def __init__(self, name: str, device: "FakeDevice", generator: torch.Generator | None) -> None:
        self.name = name
        self.steps: list[_GraphStep | _Order] = []
        self.generator = generator
        self.last: tuple[str, int] | None = None
        self._device = device

    def replay(self) -> None:
        device = self._device
        with device.lock, _unseen():
            stream = device.actor()
            if device._capture is not None:
                raise CaptureRuleError("a graph cannot be replayed within a capture")
            clock = device.log.clock(stream)
            merge(clock, device.log.host)
            if self.last is not None and clock.get(self.last[0], 0) < self.last[1]:
                raise RaceError(f"{self.name} is replayed on {stream} while it may still be running")
            device.replays += 1
            device.log.collect()
            events: dict[FakeEvent, Clock] = {}
            # The branch on which the capture began is the stream itself; every other branch is a separate actor.
            origin = self.steps[0].actor if self.steps else ""
            for step in self.steps:
                actor = stream if step.actor == origin else f"{self.name}/{step.actor}"
                own = device.log.clock(actor)
                if isinstance(step, _GraphStep):
                    self._run(actor, step)
                elif step.waits:
                    merge(own, events[step.event])
                else:
                    own[actor] = own.get(actor, 0) + 1
                    events[step.event] = dict(own)
            clock[stream] = clock.get(stream, 0) + 1
            self.last = (stream, clock[stream])

    def _run(self, actor: str, step: _GraphStep) -> None:
        device = self._device
        device.launches[actor] = device.launches.get(actor, 0) + 1
        if not (step.reads or step.writes):
            return  # views, which are inlined in the steps that use them
        device.log.tick(actor, step.what, step.reads, step.writes)
        drawing = step.random and self.generator is not None
        with device.drawing_from(self.generator) if drawing else contextlib.nullcontext():  # type: ignore[arg-type]
            made = step.function(*step.arguments, **step.keywords)
        anew = [tensor for tensor in tensors_in(made) if key_of(tensor) not in step.given]
        for kept, new in zip(step.made, anew, strict=True):
            kept.copy_(new)

    def reset(self) -> None:
        self.steps = []


@dataclass
class _Capture:
    """The state of a capture."""

    graph: FakeGraph
    origin: str
    clocks: dict[str, Clock]
    # By storage: its bytes, to be restored after the capture, and a copy of them.
    before: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)  # storages that the capture has allocated

    def run(
        self,
        device: "FakeDevice",
        actor: str,
        function: OpOverload,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        """Run an operator to find its results, and add it to the graph."""
        if function in _BLOCKING:
            raise CaptureRuleError(f"{function} makes the host wait for a stream that is being captured")
        _, writes = accessed(function, arguments, keywords)
        for tensor in writes:
            key = key_of(tensor)
            if key not in self.own and key not in self.before:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self.before[key] = (whole, whole.clone())
        given = {key_of(tensor) for tensor in tensors_in((arguments, keywords))}
        random = torch.Tag.nondeterministic_seeded in function.tags
        with device.drawing_from(torch.Generator()) if random else contextlib.nullcontext():  # draws nothing
            made = function(*arguments, **keywords)
        fresh = [tensor for tensor in tensors_in(made) if key_of(tensor) not in given | self.own]
        self.own.update(key_of(tensor) for tensor in fresh)
        device.log.allocate(self.graph.name, fresh)
        clock = self.clocks[actor]
        clock[actor] = clock.get(actor, 0) + 1
        arguments, keywords = tree_map_only(Tensor, _as_it_is, (arguments, keywords))
        kept = [_as_it_is(tensor) for tensor in fresh]
        what = f"{function} of {self.graph.name}"
        self.graph.steps.append(_GraphStep(actor, function, arguments, keywords, kept, random, what))
        return made


class FakeDevice(StreamDevice):
    """A device for tests; `without` is a wait to leave out, to check that its absence is found.

    Attributes:
        waits: every wait that occurred, with its count, in order of first occurrence.
        launches: number of operators by stream; those of a graph count for the stream that it ran on.
    """

    def __init__(self, without: Wait | None = None, memory_bytes: int = 2**34) -> None:
        super().__init__(torch.device("cpu"))
        self.waits: dict[Wait, int] = {}
        self.launches: dict[str, int] = {}
        self.replays = 0
        self._without = without
        self._memory_bytes = memory_bytes
        self.lock = threading.RLock()
        self._current = threading.local()
        self.log = AccessLog()
        self._capture: _Capture | None = None
        self._num_graphs = 0

    # Interface of `StreamDevice`

    def _make_stream(self, name: str, high_priority: bool) -> Stream:
        return FakeStream(name, self)

    def caller(self) -> Stream:
        return FakeStream(self.actor(), self)

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before = self.actor()
        self._current.name = stream.name
        try:
            yield
        finally:
            self._current.name = before

    @contextlib.contextmanager
    def issuing(self) -> Iterator[None]:
        if getattr(self._current, "seen", False):
            yield
            return
        self._current.seen = True
        try:
            with _Seeing(self):
                yield
        finally:
            self._current.seen = False
        with self.lock:
            self.log.collect()  # perhaps nothing is issued after this

    def event(self, name: str) -> Event:
        return FakeEvent(name, self)

    @contextlib.contextmanager
    def capture(self, stream: Stream, generator: torch.Generator | None = None) -> Iterator[CapturedGraph]:
        if self._capture is not None:
            raise CaptureRuleError("one capture at a time")
        self._num_graphs += 1
        graph = FakeGraph(f"graph {self._num_graphs}", self, generator)
        capture = self._capture = _Capture(graph, stream.name, {stream.name: {}})
        try:
            with self.on(stream):
                yield graph
        finally:
            self._capture = None
            with _unseen():
                for bytes_now, bytes_before in capture.before.values():
                    bytes_now.copy_(bytes_before)
        origin = capture.clocks[capture.origin]
        for name, clock in capture.clocks.items():
            if origin.get(name, 0) < clock.get(name, 0):
                raise CaptureRuleError(f"the capture ended before {name} was joined")

    def prepare_captures(self) -> None:
        """Do nothing: captures here do not run the garbage collector."""

    @contextlib.contextmanager
    def without_waiting(self) -> Iterator[None]:
        self._current.must_not_wait = True
        try:
            yield
        finally:
            self._current.must_not_wait = False

    def generator(self) -> torch.Generator:
        return torch.Generator()

    @contextlib.contextmanager
    def drawing_from(self, generator: torch.Generator) -> Iterator[None]:
        default = torch.default_generator
        state = default.get_state()
        default.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(default.get_state())
            default.set_state(state)

    def is_host(self, tensor: Tensor) -> bool:
        return not self.log.knows(tensor)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        made = torch.empty(tuple(shape), dtype=dtype)
        self.log.pin(made)
        return made

    def write_host(self, target: Tensor, source: Tensor) -> None:
        assert self.log.is_pinned(target)
        with self.lock, _unseen():
            self.log.tick(HOST, "host write", [], [MemoryRange.of(target)])
            target.copy_(source)

    def read_host(self, pinned: Tensor) -> list[Any]:
        assert self.log.is_pinned(pinned)
        with self.lock, _unseen():
            self.log.tick(HOST, "host read", [MemoryRange.of(pinned)], [])
            values: list[Any] = pinned.tolist()
        return values

    def upload(self, target: Tensor, values: Sequence[float]) -> None:
        with _unseen():
            source = torch.tensor(values, dtype=target.dtype)
        self.log.allocate(self.actor(), [source])
        target.copy_(source)

    def free_bytes(self) -> int:
        return self._memory_bytes - self.used_bytes()

    def used_bytes(self) -> int:
        with self.lock:
            return self.log.used_bytes()

    def cores(self) -> tuple[int, ...]:
        return available_cores()

    # Observation of operators

    def saw(self, function: OpOverload, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        with self.lock:
            actor = self.actor()
            if self._capture is not None and actor in self._capture.clocks:
                return self._capture.run(self, actor, function, arguments, keywords)
            reads, writes = accessed(function, arguments, keywords)
            self.launches[actor] = self.launches.get(actor, 0) + 1
            self.log.collect_sometimes()
            given = {key_of(tensor) for tensor in tensors_in((arguments, keywords))}
            if function is _aten.lift_fresh.default and not self.log.knows(arguments[0]):
                self.log.allocate(actor, [arguments[0]])  # just made by torch.tensor
            self.log.tick(actor, function, list(map(MemoryRange.of, reads)), list(map(MemoryRange.of, writes)))
            made = function(*arguments, **keywords)
            fresh = [tensor for tensor in tensors_in(made) if key_of(tensor) not in given]
            if fresh:
                self.log.allocate(actor, fresh)
                self.log.tick(actor, function, [], list(map(MemoryRange.of, fresh)))
            if function in _BLOCKING:
                if getattr(self._current, "must_not_wait", False):
                    raise CaptureRuleError(f"{function} makes the host wait")
                self.log.collect()
                merge(self.log.host, self.log.clock(actor))
            return made

    # Streams and events

    def actor(self) -> str:
        return getattr(self._current, "name", CALLER)

    def left_out(self, waiting: str, event: FakeEvent) -> bool:
        """Count a wait, and return whether it is the one to suppress."""
        wait = Wait(waiting, event.name)
        self.waits[wait] = self.waits.get(wait, 0) + 1
        return wait == self._without


class _Seeing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, device: FakeDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._device.saw(func, args, kwargs or {})


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    with _disable_current_modes(), torch.no_grad():
        yield


def _as_it_is(tensor: Tensor) -> Tensor:
    """Alias the memory: Python code may give the original tensor other memory (`set_`)."""
    return tensor.detach()
