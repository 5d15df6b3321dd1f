"""Teams of devices, each of which is a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

PATIENCE_S = 60.0


@dataclass
class Member:
    """A device of a team.

    Attributes:
        number: of the device.
        told: what each device has said last, the same object for all.
        meeting: of all of them.
        asked: how many times it was asked what all say.
    """

    number: int
    told: list[Any]
    meeting: threading.Barrier
    asked: int = 0
    device: torch.device = field(default=torch.device("cpu"))

    @property
    def size(self) -> int:
        return len(self.told)

    def everyone(self, value: Any) -> Sequence[Any]:
        self.asked += 1
        self.told[self.number] = value
        self.meeting.wait(PATIENCE_S)
        values = list(self.told)
        self.meeting.wait(PATIENCE_S)
        return values


def team_of(size: int) -> list[Any]:
    """Devices that wait for each other; `Any`, since they are no `Team`."""
    told, meeting = [None] * size, threading.Barrier(size)
    return [Member(number, told, meeting) for number in range(size)]


def together(function: Callable[[Any], Any], members: Sequence[Any]) -> list[Any]:
    """What a function gives on each device, all at the same time."""
    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(function, members))
