"""What an engine needs of a device that works through streams: a GPU, or the fake device of the tests.

A stream is a queue: what is issued on it runs in order. Streams run at the same time and are ordered by events alone:
one stream records an event, another (or the host) waits for it. Nothing here ever waits for the whole device.
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
        """Block the host until the device has got there; at once if it was never recorded."""

    @abc.abstractmethod
    def query(self) -> bool:
        """Whether the device has got there."""


class Stream(abc.ABC):
    """A queue of work on a device."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def wait(self, event: Event) -> None:
        """What is issued on this stream from now on runs behind the event as it was recorded last."""

    @abc.abstractmethod
    def record(self, event: Event) -> None:
        """Put the event behind all that has been issued on this stream."""


class CapturedGraph(abc.ABC):
    """Work that was issued once, to be run again at the cost of one launch. It must not overlap itself.

    It reads and writes the addresses that it was captured with: whatever it touches has to outlive it.
    """

    @abc.abstractmethod
    def replay(self) -> None:
        """Run it on the current stream."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Give its memory back; it cannot be run any more."""


class StreamDevice(abc.ABC):
    """A device that works through streams."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._streams: dict[str, Stream] = {}

    def stream(self, name: str, *, high_priority: bool = False) -> Stream:
        """The stream of that name, made when it is first asked for and kept.

        Args:
            name: what it is for.
            high_priority: whether its work goes first where the device has a choice.
        """
        if name not in self._streams:
            self._streams[name] = self._make_stream(name, high_priority)
        return self._streams[name]

    @abc.abstractmethod
    def _make_stream(self, name: str, high_priority: bool) -> Stream: ...

    @abc.abstractmethod
    def caller(self) -> Stream:
        """The stream that is current in the calling thread."""

    @abc.abstractmethod
    def on(self, stream: Stream) -> contextlib.AbstractContextManager[Any]:
        """Within it, the calling thread issues on this stream, and what it allocates belongs to it."""

    @abc.abstractmethod
    def issuing(self) -> contextlib.AbstractContextManager[Any]:
        """Around all that the calling thread issues on this device."""

    @abc.abstractmethod
    def event(self, name: str) -> Event:
        """Make an event."""

    @abc.abstractmethod
    def capture(
        self, stream: Stream, generator: torch.Generator | None = None
    ) -> contextlib.AbstractContextManager[CapturedGraph]:
        """Within it, work that is issued on `stream` is captured and not run.

        The graph has a memory pool of its own. Streams that wait for an event of the capture join it, and have to be
        waited for before it ends. One capture at a time in a process.

        Args:
            stream: where it begins and ends.
            generator: whose random numbers the graph draws; seed it before a replay. None: those of the device's own,
                which graphs that run at the same time must not share.
        """

    @abc.abstractmethod
    def prepare_captures(self) -> None:
        """Do what takes time and would be in the way of the captures that come next."""

    @abc.abstractmethod
    def without_waiting(self) -> contextlib.AbstractContextManager[Any]:
        """Within it, work that would make the host wait for the device raises, as it would in a capture."""

    @abc.abstractmethod
    def generator(self) -> torch.Generator:
        """Make a generator of random numbers."""

    @abc.abstractmethod
    def drawing_from(self, generator: torch.Generator) -> contextlib.AbstractContextManager[Any]:
        """Within it, what the calling thread issues draws from this generator. Not for two threads at once."""

    @abc.abstractmethod
    def is_host(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the memory of the host."""

    @abc.abstractmethod
    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Host memory that the device can copy from and to while both go on working."""

    @abc.abstractmethod
    def write_host(self, target: Tensor, source: Tensor) -> None:
        """The host copies one of its tensors into pinned memory, at once."""

    @abc.abstractmethod
    def read_host(self, pinned: Tensor) -> list[Any]:
        """What the host finds in pinned memory."""

    @abc.abstractmethod
    def upload(self, target: Tensor, values: Sequence[float]) -> None:
        """Fill a small tensor, in the order of the current stream and without waiting for it."""

    @abc.abstractmethod
    def free_bytes(self) -> int:
        """Memory that is not in use, in bytes."""

    @abc.abstractmethod
    def used_bytes(self) -> int:
        """Memory that this process holds and uses, in bytes."""

    @abc.abstractmethod
    def cores(self) -> tuple[int, ...]:
        """The processor cores that are nearest to the device."""
