"""Process groups each of whose processes is a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

PATIENCE_S = 300.0


@dataclass
class ThreadRank:
    """A device of a group.

    Attributes:
        rank: of the device.
        said: what each device has said last, the same object for all.
        barrier: of all of them.
        asked: how many times it was asked what all say.
    """

    rank: int
    said: list[Any]
    barrier: threading.Barrier
    asked: int = 0
    device: torch.device = field(default=torch.device("cpu"))

    @property
    def size(self) -> int:
        return len(self.said)

    def all_gather(self, value: Any) -> Sequence[Any]:
        self.asked += 1
        self.said[self.rank] = value
        self.barrier.wait(PATIENCE_S)
        values = list(self.said)
        self.barrier.wait(PATIENCE_S)
        return values


def thread_group(size: int) -> list[Any]:
    """Devices that wait for each other; `Any`, since they are no `ProcessGroup`."""
    said, barrier = [None] * size, threading.Barrier(size)
    return [ThreadRank(rank, said, barrier) for rank in range(size)]


def together(function: Callable[[Any], Any], group: Sequence[Any]) -> list[Any]:
    """What a function gives on each device, all at the same time."""
    with ThreadPoolExecutor(len(group)) as threads:
        return list(threads.map(function, group))
