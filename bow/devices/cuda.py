"""A CUDA device, through torch."""

import contextlib
import functools
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bow.devices.base import CapturedGraph, Event, Stream, StreamDevice
from bow.devices.cores import available_cores, parse_cores
from bow.errors import SettingError

# Size of torch's pool of streams per priority, handed out round-robin: the 33rd is the first one again.
STREAMS_PER_PRIORITY = 32

_cuda: Any = torch._C

# Graphs of failed captures, never destroyed: torch 2.11's allocator of pinned memory keeps querying them.
_failed_captures: list[Any] = []

_PCI = Path("/sys/bus/pci/devices")


class CudaEvent(Event):
    """A CUDA event, without timing, which costs more."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.raw: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        self.raw.synchronize()

    def query(self) -> bool:
        return bool(self.raw.query())


class CudaStream(Stream):
    """A CUDA stream."""

    def __init__(self, name: str, raw: Any) -> None:
        super().__init__(name)
        self.raw = raw

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self.raw.wait_event(event.raw)

    def record(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        event.raw.record(self.raw)


class CudaGraph(CapturedGraph):
    """A CUDA graph with its own memory pool: graphs that may run concurrently must not share one."""

    def __init__(self, of_stream: "GraphsOfStream") -> None:
        self.raw: Any = torch.cuda.CUDAGraph()
        self._dropped = weakref.finalize(self, of_stream.drop, of_stream.keep(self.raw))

    def replay(self) -> None:
        self.raw.replay()

    def reset(self) -> None:
        """Free its pool, as soon as no graph of its stream is in use."""
        self._dropped()


class GraphsOfStream:
    """The graphs that were captured on one stream; they are destroyed together."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._in_use: set[int] = set()
        self._last = 0
        self.reserved = 0  # bytes of their memory pools, unavailable to others

    def keep(self, raw: Any) -> int:
        self._last += 1
        self._kept[self._last] = raw
        self._in_use.add(self._last)
        return self._last

    def drop(self, number: int) -> None:
        self._in_use.discard(number)
        # From torch 2.12 on, destroying a graph frees cuBLAS's workspaces on its stream, which the other graphs use.
        if not self._in_use:
            self._kept.clear()
            self.reserved = 0


class _On:
    """`torch.cuda.stream` without checking that CUDA is available: a third of the host time of a round of `graph`."""

    __slots__ = ("_before", "_index", "_stream")

    def __init__(self, index: int, stream: Any) -> None:
        self._index, self._stream = index, stream

    def __enter__(self) -> None:
        self._before = _cuda._cuda_getCurrentStream(self._index)
        _cuda._cuda_setStream(self._stream.stream_id, self._stream.device_index, self._stream.device_type)

    def __exit__(self, *error: object) -> None:
        _cuda._cuda_setStream(*self._before)


class CudaDevice(StreamDevice):
    """One GPU."""

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__(torch_device)
        self._index = torch_device.index or 0
        self._handles: set[int] = set()
        self._graphs: dict[str, GraphsOfStream] = {}
        self._generators = threading.RLock()

    def _make_stream(self, name: str, high_priority: bool) -> Stream:
        for _ in range(STREAMS_PER_PRIORITY):  # other code may have taken some
            made = torch.cuda.Stream(self.torch_device, priority=-1 if high_priority else 0)  # type: ignore[no-untyped-call]
            if made.cuda_stream not in self._handles:
                self._handles.add(made.cuda_stream)
                return CudaStream(name, made)
        raise SettingError(
            f"{len(self._handles)} streams are in use on {self.torch_device} and torch has no more of its own "
            f"({STREAMS_PER_PRIORITY} a priority); use fewer learners"
        )

    def caller(self) -> Stream:
        return CudaStream("caller", torch.cuda.current_stream(self.torch_device))

    def on(self, stream: Stream) -> contextlib.AbstractContextManager[Any]:
        assert isinstance(stream, CudaStream)
        if _cuda._cuda_getDevice() != self._index:
            context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(stream.raw)
            return context
        return _On(self._index, stream.raw)

    def issuing(self) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = torch.cuda.device(self._index)
        return context

    def event(self, name: str) -> Event:
        return CudaEvent(name)

    @contextlib.contextmanager
    def capture(self, stream: Stream, generator: torch.Generator | None = None) -> Iterator[CapturedGraph]:
        """Capture issued work."""
        # `thread_local`: other threads (a loader that pins memory) may keep calling CUDA meanwhile. Until torch 2.12
        # all graphs of a generator share one seed and offset on the device, which concurrent graphs would overwrite:
        # hence each graph has its own state, which is the default generator's during its capture. A failed capture
        # makes that state unusable, and is ended here, which `torch.cuda.graph` does not do (2.11): the allocator would
        # remain in capture mode on the capture's stream, and mask the original error.
        assert isinstance(stream, CudaStream)
        of_stream = self._graphs.setdefault(stream.name, GraphsOfStream())
        graph = CudaGraph(of_stream)
        pool: Any = torch.cuda.graph_pool_handle()
        failure: BaseException | None = None
        with (
            _no_garbage_collection(),
            torch.cuda.stream(torch.cuda.current_stream(self.torch_device)),
            self._state_of(generator),
        ):
            try:
                with torch.cuda.graph(graph.raw, pool=pool, stream=stream.raw, capture_error_mode="thread_local"):
                    reserved = torch.cuda.memory_reserved(self._index)
                    try:
                        yield graph
                    except BaseException as error:
                        failure = error
                        raise
                of_stream.reserved += torch.cuda.memory_reserved(self._index) - reserved
            except BaseException as error:
                _failed_captures.append(graph.raw)
                self._end_capture(pool)
                if generator is None:  # the default generator's state is in a capture that has not ended
                    default = torch.cuda.default_generators[self._index]
                    fresh = self.generator().manual_seed(default.initial_seed())
                    default.graphsafe_set_state(fresh.graphsafe_get_state())
                raise (failure or error) from None

    def _end_capture(self, pool: Any) -> None:
        for end in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            with contextlib.suppress(RuntimeError, AttributeError):  # it has ended already
                getattr(_cuda, end)(self._index, pool)

    def prepare_captures(self) -> None:
        gc.collect()

    @contextlib.contextmanager
    def without_waiting(self) -> Iterator[None]:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that this is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def generator(self) -> torch.Generator:
        return torch.Generator(self.torch_device)

    def drawing_from(self, generator: torch.Generator) -> contextlib.AbstractContextManager[None]:
        return self._state_of(generator)

    @contextlib.contextmanager
    def _state_of(self, generator: torch.Generator | None) -> Iterator[None]:
        if generator is None:
            yield
            return
        with self._generators:
            default = torch.cuda.default_generators[self._index]
            own = default.graphsafe_get_state()
            default.graphsafe_set_state(generator.graphsafe_get_state())
            try:
                yield
            finally:
                default.graphsafe_set_state(own)

    def is_host(self, tensor: Tensor) -> bool:
        return tensor.device.type == "cpu"

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def write_host(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def read_host(self, pinned: Tensor) -> list[Any]:
        values: list[Any] = pinned.tolist()
        return values

    def upload(self, target: Tensor, values: Sequence[float]) -> None:
        """Copy from fresh page-locked memory, which torch keeps alive until the copy is done."""
        target.copy_(torch.tensor(values, dtype=target.dtype).pin_memory(), non_blocking=True)

    def free_bytes(self) -> int:
        """Memory free in the driver, and unused in torch's allocator."""
        free, _ = torch.cuda.mem_get_info(self._index)
        kept = torch.cuda.memory_reserved(self._index) - torch.cuda.memory_allocated(self._index)
        of_graphs = sum(graphs.reserved for graphs in self._graphs.values())
        return int(free + max(0, kept - of_graphs))

    def used_bytes(self) -> int:
        return int(torch.cuda.memory_allocated(self._index))

    def cores(self) -> tuple[int, ...]:
        """Return the cores of the GPU's socket, out of those that this process may use."""
        allowed = available_cores()
        near = set(_local_cores(self._index))
        return tuple(core for core in allowed if core in near) or allowed


@functools.cache
def _local_cores(index: int) -> tuple[int, ...]:
    properties: Any = torch.cuda.get_device_properties(index)
    try:
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        return parse_cores((_PCI / address / "local_cpulist").read_text(encoding="ascii"))
    except (AttributeError, OSError, ValueError):  # an older torch, or a container that hides its buses
        return ()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable the collector: destroying a graph during a capture is a call that ends the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def prepare_environment() -> None:
    """Request all of CUDA's hardware queues; no effect once CUDA has been used in this process."""
    # With the default of 8, further streams share a queue, and one learner's kernels wait for another's.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@functools.cache
def cuda_device(torch_device: torch.device) -> CudaDevice:
    """Return the only object for a GPU: its streams are created once."""
    return CudaDevice(torch_device)
