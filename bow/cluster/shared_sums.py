"""Sums between processes of one machine in memory that all of them see: no sockets, and no threads of their own."""

import contextlib
import mmap
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from bow.cluster.heartbeat import place
from bow.cluster.world import PATIENCE, PendingSum

MOST_BYTES = 2**26  # of a tensor: what carries more is not bound by what sockets cost

LINE = 64  # bytes that a core takes from another at once
COUNT, PROCESS, GONE = range(3)  # what each process says in a line of its own

SPIN_S, PAUSE_S, LOOK_S = 0.002, 0.00005, 0.1


class SharedSums:
    """Rows of memory that all processes see: each writes its own, says so, and adds up all when all have."""

    # Two sets of rows take turns. Who writes into one has read the other to its end: all have written that, which they
    # do when they have read this one to its end.

    def __init__(self, file: int, rank: int, size: int, row_bytes: int) -> None:
        memory = mmap.mmap(file, _all_bytes(size, row_bytes))
        self.row_bytes = row_bytes
        self._rank, self._size = rank, size
        self._lines = memoryview(memory)[: size * LINE].cast("q")
        rows = torch.frombuffer(memory, dtype=torch.uint8, offset=size * LINE)
        self._rows = rows.view(2, size, row_bytes)
        self._begun = 0
        self._last: SharedSum | None = None
        self._say(PROCESS, os.getpid())

    @classmethod
    def agreed(
        cls, num_bytes: int, rank: int, size: int, broadcast: Callable[[Any], Any], all_gather: Callable[[Any], Any]
    ) -> Self | None:
        """What all processes share, made by rank 0; None where one of them cannot have it."""
        places = set(all_gather(place() if is_possible() else None))
        if None in places or len(places) > 1:
            return None
        row_bytes = -(-num_bytes // LINE) * LINE
        with contextlib.ExitStack() as files:
            shared = None
            with contextlib.suppress(OSError):
                path = broadcast(_new_file(_all_bytes(size, row_bytes), files) if rank == 0 else None)
                if path is not None:
                    file = os.open(path, os.O_RDWR)
                    files.callback(os.close, file)
                    shared = cls(file, rank, size, row_bytes)
            return shared if all(all_gather(shared is not None)) else None

    def begin(self, tensor: Tensor) -> PendingSum:
        """Begin a sum; one that is still under way ends before."""
        if self._last is not None:
            self._last.wait()
        self._begun += 1
        rows = self._rows[self._begun % 2, :, : tensor.nbytes].view(tensor.dtype)
        rows[self._rank].copy_(tensor)
        self._say(COUNT, self._begun)
        self._last = SharedSum(self, tensor, rows, self._begun)
        return self._last

    def wait_for(self, number: int) -> None:
        """Wait until all processes have written their rows of this sum."""
        began = looked = time.monotonic()
        for other in range(self._size):
            while self._said(other, COUNT) < number:
                now = time.monotonic()
                if now - looked > LOOK_S:
                    looked = now
                    # What has gone may have written this row before.
                    if self._has_gone(other) and self._said(other, COUNT) < number:
                        raise RuntimeError(f"the process of rank {other} has gone")
                    if now - began > PATIENCE.total_seconds():
                        raise RuntimeError(f"rank {other} did not come to a sum within {PATIENCE}")
                os.sched_yield()
                time.sleep(0 if now - began < SPIN_S else PAUSE_S)  # which lets other threads of Python run, too

    def close(self) -> None:
        """Have the others not wait for this process any more."""
        self._say(GONE, 1)

    def _has_gone(self, other: int) -> bool:
        if self._said(other, GONE):
            return True
        try:
            status = Path(f"/proc/{self._said(other, PROCESS)}/stat").read_text(encoding="utf-8")
        except OSError:
            return True
        return status.rpartition(")")[2].split()[0] in "ZX"

    def _say(self, what: int, value: int) -> None:
        self._lines[self._rank * LINE // 8 + what] = value

    def _said(self, other: int, what: int) -> int:
        return self._lines[other * LINE // 8 + what]


class SharedSum(PendingSum):
    """A sum whose addends are on their way."""

    def __init__(self, sums: SharedSums, tensor: Tensor, rows: Tensor, number: int) -> None:
        self._left: tuple[SharedSums, Tensor, Tensor, int] | None = sums, tensor, rows, number

    def wait(self) -> None:
        if self._left is None:
            return
        sums, tensor, rows, number = self._left
        self._left = None
        sums.wait_for(number)
        first, second, *others = rows
        torch.add(first, second, out=tensor)  # in the order of ranks, so that all have the same bits
        for row in others:
            tensor.add_(row)


def is_possible() -> bool:
    """Whether processes can share memory, and what one has written before it says so is there for who has heard it."""
    return platform.machine() == "x86_64" and hasattr(os, "memfd_create")


def _all_bytes(size: int, row_bytes: int) -> int:
    return size * LINE + 2 * size * row_bytes


def _new_file(num_bytes: int, files: contextlib.ExitStack) -> str | None:
    """Memory that is there now, and as long as somebody has it open, as others can open it; None: there is none."""
    try:
        file = os.memfd_create("bow sums")
        files.callback(os.close, file)
        os.posix_fallocate(file, 0, num_bytes)
    except OSError:
        return None
    return f"/proc/{os.getpid()}/fd/{file}"
