"""When a device computed what, and when it waited for others."""

import contextlib
import time
from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch

from bow.schedule import Span

Category: TypeAlias = Literal["forward", "backward", "transfer", "reduction", "update"]


class Recorder:
    """Notes spans while it is on.

    The clock is the machine's: spans of processes on one machine can be compared. A span of the categories `transfer`
    and `reduction` is the time that the device waited, not that for which something was under way. On a GPU every span
    ends when the GPU has finished it, which takes away overlap: record some steps only.

    Args:
        number: of the device in the strategy.
        device: what it is.
        is_on: whether to note anything.
    """

    def __init__(self, number: int, device: torch.device, is_on: bool = False) -> None:
        self.is_on = is_on
        self.spans: list[Span] = []
        self._place = f"device {number}"
        self._device = device

    @contextlib.contextmanager
    def span(self, category: Category, name: str) -> Iterator[None]:
        """Note from when to when the block ran."""
        if not self.is_on:
            yield
            return
        start = self._now()
        yield
        self.spans.append(Span(name, self._place, start, self._now(), category))

    def _now(self) -> int:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.monotonic_ns()
