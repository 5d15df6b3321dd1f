"""A CUDA device, through torch."""

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bow.device.base import CapturedGraph, Event, Stream, StreamDevice
from bow.device.cores import available_cores, parse_cores
from bow.errors import SettingError

STREAMS_PER_PRIORITY = 32
"""torch hands out so many streams of a priority, round-robin: the 33rd would be the first one again."""

_PCI = Path("/sys/bus/pci/devices")


class CudaEvent(Event):
    """An event of CUDA's, without timing, which costs more."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.raw: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Block the host until the device has got there."""
        self.raw.synchronize()

    def query(self) -> bool:
        """Whether the device has got there."""
        return bool(self.raw.query())


class CudaStream(Stream):
    """A stream of CUDA's."""

    def __init__(self, name: str, raw: Any) -> None:
        super().__init__(name)
        self.raw = raw

    def wait(self, event: Event) -> None:
        """Order what comes behind the event."""
        assert isinstance(event, CudaEvent)
        self.raw.wait_event(event.raw)

    def record(self, event: Event) -> None:
        """Put the event behind what has been issued."""
        assert isinstance(event, CudaEvent)
        event.raw.record(self.raw)


class CudaGraph(CapturedGraph):
    """A CUDA graph with a memory pool of its own: graphs that may run at the same time must not share one."""

    def __init__(self) -> None:
        self.raw: Any = torch.cuda.CUDAGraph()

    def replay(self) -> None:
        """Launch it on the current stream."""
        self.raw.replay()

    def reset(self) -> None:
        """Destroy it and give its pool back."""
        self.raw.reset()


class CudaDevice(StreamDevice):
    """One GPU.

    Args:
        torch_device: with its index.
    """

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__(torch_device)
        self._index = torch_device.index or 0
        self._handles: set[int] = set()

    def _make_stream(self, name: str, high_priority: bool) -> Stream:
        made = torch.cuda.Stream(self.torch_device, priority=-1 if high_priority else 0)  # type: ignore[no-untyped-call]
        if made.cuda_stream in self._handles:
            raise SettingError(
                f"{len(self._handles)} streams are in use on {self.torch_device} and torch has no more of its own "
                f"({STREAMS_PER_PRIORITY} a priority); use fewer learners"
            )
        self._handles.add(made.cuda_stream)
        return CudaStream(name, made)

    def caller(self) -> Stream:
        """The stream that is current in the calling thread."""
        return CudaStream("caller", torch.cuda.current_stream(self.torch_device))

    def on(self, stream: Stream) -> contextlib.AbstractContextManager[Any]:
        """Make a stream the current one."""
        assert isinstance(stream, CudaStream)
        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(stream.raw)
        return context

    def issuing(self) -> contextlib.AbstractContextManager[Any]:
        """Make this the current device."""
        context: contextlib.AbstractContextManager[Any] = torch.cuda.device(self._index)
        return context

    def event(self, name: str) -> Event:
        """Make an event."""
        return CudaEvent(name)

    @contextlib.contextmanager
    def capture(self, stream: Stream, generator: torch.Generator | None = None) -> Iterator[CapturedGraph]:
        """Capture what is issued.

        `thread_local`: other threads (a loader that pins memory) may go on calling CUDA meanwhile. Until torch 2.12 all
        graphs of a generator share one pair of seed and offset on the device, which graphs that run at the same time
        would take from each other: hence a state of its own for each, which is the default generator's while its graph
        is captured.
        """
        assert isinstance(stream, CudaStream)
        graph = CudaGraph()
        with (
            self._state_of(generator),
            torch.cuda.graph(graph.raw, stream=stream.raw, capture_error_mode="thread_local"),
        ):
            yield graph

    def generator(self) -> torch.Generator:
        """Make a generator on the device."""
        return torch.Generator(self.torch_device)

    @contextlib.contextmanager
    def drawing_from(self, generator: torch.Generator) -> Iterator[None]:
        """Put the generator's state in the place of the default generator's."""
        with self._state_of(generator):
            yield

    @contextlib.contextmanager
    def _state_of(self, generator: torch.Generator | None) -> Iterator[None]:
        if generator is None:
            yield
            return
        default = torch.cuda.default_generators[self._index]
        own = default.graphsafe_get_state()
        default.graphsafe_set_state(generator.graphsafe_get_state())
        try:
            yield
        finally:
            default.graphsafe_set_state(own)

    def is_host(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the memory of the host."""
        return tensor.device.type == "cpu"

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Page-locked host memory."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def write_host(self, target: Tensor, source: Tensor) -> None:
        """Copy on the host."""
        target.copy_(source)

    def read_host(self, pinned: Tensor) -> list[Any]:
        """Read on the host."""
        values: list[Any] = pinned.tolist()
        return values

    def upload(self, target: Tensor, values: Sequence[float]) -> None:
        """Copy from fresh page-locked memory, which torch keeps until the copy has been made."""
        target.copy_(torch.tensor(values, dtype=target.dtype).pin_memory(), non_blocking=True)

    def free_bytes(self) -> int:
        """What the driver has, and what torch's allocator keeps without using it."""
        free, _ = torch.cuda.mem_get_info(self._index)
        kept = torch.cuda.memory_reserved(self._index) - torch.cuda.memory_allocated(self._index)
        return int(free + kept)

    def used_bytes(self) -> int:
        """What torch's allocator has given out."""
        return int(torch.cuda.memory_allocated(self._index))

    def cores(self) -> tuple[int, ...]:
        """The cores of the socket that the GPU is plugged into, of those that this process may use."""
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


def prepare_environment() -> None:
    """Ask CUDA for as many hardware queues as it has; without effect once CUDA has been used in this process.

    With the default of 8, streams beyond that share a queue, and one learner's kernels wait behind another's.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@functools.cache
def cuda_device(torch_device: torch.device) -> CudaDevice:
    """The one object for a GPU: its streams are made once."""
    return CudaDevice(torch_device)
