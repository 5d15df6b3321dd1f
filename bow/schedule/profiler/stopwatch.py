"""How long a device with streams takes for what one of them was given."""

import time
from typing import Any, Protocol

import torch

from bow.devices import StreamDevice


class Stopwatch(Protocol):
    """Says how long a device has worked. It is asked on the thread, and for the stream, that issues."""

    def mark(self) -> Any:
        """Remember the point behind all that the current stream has been given."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks; the host waits for the second."""


class HostStopwatch:
    """Reads the clock of the host when the device has got there: right where work runs as soon as it is issued.

    Args:
        device: whose current stream is waited for.

    Example:
        >>> from bow.testing import FakeDevice
        >>> watch = HostStopwatch(FakeDevice())
        >>> watch.seconds(watch.mark(), watch.mark()) >= 0
        True
    """

    def __init__(self, device: StreamDevice) -> None:
        self._device = device

    def mark(self) -> float:
        """The time when the current stream has come to its end."""
        over = self._device.event("a mark of the stopwatch")
        self._device.caller().record(over)
        over.synchronize()
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """The difference."""
        return end - begin


class CudaStopwatch:
    """Reads the GPU's own clock, by events in the stream: what the host does meanwhile is none of it."""

    def mark(self) -> Any:
        """An event that has been recorded."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """As the GPU says."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def stopwatch_of(device: StreamDevice) -> Stopwatch:
    """The best stopwatch that there is for a device."""
    return CudaStopwatch() if device.torch_device.type == "cuda" else HostStopwatch(device)
