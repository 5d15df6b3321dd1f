"""Evaluations, one of which may kill its process. Nothing here imports torch: workers without it start quickly."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def sums(placements: list[tuple[int, ...]]) -> list[float | None]:
    """The more operations have a high device number, the slower; what has none of them on device 0 does not fit."""
    return [1.0 + sum(placement) if 0 in placement else None for placement in placements]


class Marking:
    """Leaves a line for each placement; may die of some, always or the first time."""

    def __init__(self, file: Path, deadly: tuple[int, ...] = (), deaths: int = 0, slow: tuple[int, ...] = ()) -> None:
        self.file, self.deadly, self.deaths, self.slow = file, deadly, deaths, slow

    def __call__(self, placements: list[tuple[int, ...]]) -> list[float | None]:
        (placement,) = placements
        with self.file.open("a") as file:
            file.write(f"{placement} {os.getpid()}\n")
        if placement == self.deadly and self.marks().count(placement) <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        if placement == self.slow:
            time.sleep(60)
        print("what is printed is no answer")
        return [None if sum(placement) == 5 else 1.0 + sum(placement)]

    def marks(self) -> list[tuple[int, ...]]:
        return [tuple(map(int, line[1:].split(")")[0].split(","))) for line in self.file.read_text().splitlines()]

    def pids(self) -> set[int]:
        return {int(line.split()[-1]) for line in self.file.read_text().splitlines()}
