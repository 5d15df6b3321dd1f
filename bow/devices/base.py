"""Interface of a device with streams, as engines use it: a GPU, or the fake device of the tests.

A stream is a queue: work issued on it runs in order. Streams run concurrently and are ordered by events alone: one
stream records an event, another (or the host) waits for it. Nothing here waits for the whole device.
"""

import abc
import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Event(abc.ABC):
    """A point in the work of a stream. Recording it again moves it."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Block the host until the device has reached the event; return at once if it was never recorded."""

    @abc.abstractmethod
    def query(self) -> bool:
        """Whether the device has reached the event."""


class Stream(abc.ABC):
    """A queue of work on a device."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def wait(self, event: Event) -> None:
        """Make work issued on this stream from now on wait for the event's last record."""

    @abc.abstractmethod
    def record(self, event: Event) -> None:
        """Record the event after all work issued on this stream so far."""


class CapturedGraph(abc.ABC):
    """Work that was captured once and is replayed with one launch. A replay must not overlap another.

    It reads and writes the addresses of the capture: all tensors it uses have to outlive it.
    """

    @abc.abstractmethod
    def replay(self) -> None:
        """Replay it on the current stream."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Free its memory; it cannot be replayed any more."""


class StreamDevice(abc.ABC):
    """A device with streams."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._streams: dict[str, Stream] = {}

    def stream(self, name: str, *, high_priority: bool = False) -> Stream:
        """Return the stream of that name, created on first use and kept.

        Args:
            name: its purpose.
            high_priority: whether the device prefers its work.
        """
        if name not in self._streams:
            self._streams[name] = self._make_stream(name, high_priority)
        return self._streams[name]

    @abc.abstractmethod
    def _make_stream(self, name: str, high_priority: bool) -> Stream: ...

    @abc.abstractmethod
    def caller(self) -> Stream:
        """Return the calling thread's current stream."""

    @abc.abstractmethod
    def on(self, stream: Stream) -> contextlib.AbstractContextManager[Any]:
        """Make this stream the calling thread's current one; allocations belong to it."""

    @abc.abstractmethod
    def issuing(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which the calling thread issues work on this device."""

    @abc.abstractmethod
    def event(self, name: str) -> Event:
        """Create an event."""

    @abc.abstractmethod
    def capture(
        self, stream: Stream, generator: torch.Generator | None = None
    ) -> contextlib.AbstractContextManager[CapturedGraph]:
        """Capture work issued on `stream` instead of running it.

        The graph has its own memory pool. Streams that wait for an event of the capture join it, and must be joined
        back before it ends. One capture at a time per process.

        Args:
            stream: the stream on which the capture begins and ends.
            generator: source of the graph's random numbers; seed it before a replay. None: the device's default
                generator, which graphs that run concurrently must not share.
        """

    @abc.abstractmethod
    def prepare_captures(self) -> None:
        """Do slow work now that would interfere with the captures that follow."""

    @abc.abstractmethod
    def without_waiting(self) -> contextlib.AbstractContextManager[Any]:
        """Raise on work that would make the host wait for the device, as a capture would."""

    @abc.abstractmethod
    def generator(self) -> torch.Generator:
        """Create a random number generator."""

    @abc.abstractmethod
    def drawing_from(self, generator: torch.Generator) -> contextlib.AbstractContextManager[Any]:
        """Make the calling thread's work draw from this generator. Not for two threads at once."""

    @abc.abstractmethod
    def is_host(self, tensor: Tensor) -> bool:
        """Whether a tensor is in host memory."""

    @abc.abstractmethod
    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate page-locked host memory, for copies that overlap with work of host and device."""

    @abc.abstractmethod
    def write_host(self, target: Tensor, source: Tensor) -> None:
        """Copy a host tensor into pinned memory, synchronously."""

    @abc.abstractmethod
    def read_host(self, pinned: Tensor) -> list[Any]:
        """Return the current values of pinned memory."""

    @abc.abstractmethod
    def upload(self, target: Tensor, values: Sequence[float]) -> None:
        """Fill a small tensor, in order of the current stream and without waiting for it."""

    @abc.abstractmethod
    def free_bytes(self) -> int:
        """Unused memory, in bytes."""

    @abc.abstractmethod
    def used_bytes(self) -> int:
        """Memory that this process has allocated, in bytes."""

    @abc.abstractmethod
    def cores(self) -> tuple[int, ...]:
        """Return the CPU cores nearest to the device."""
