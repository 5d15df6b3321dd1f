"""Sums between processes of one machine through shared memory, without sockets or extra threads."""

import contextlib
import mmap
import os
import platform
import time
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from bow.cluster.heartbeat import place, process_status
from bow.cluster.world import PATIENCE, PendingSum

MOST_BYTES = 2**26  # of a tensor: for more, socket overhead is not the bottleneck

LINE = 64  # size of a cache line
COUNT, PROCESS, GONE = range(3)  # fields of a process's line

SPIN_S, PAUSE_S, LOOK_S = 0.002, 0.00005, 0.1


class SharedSums:
    """Rows of shared memory: each process writes its row, publishes a counter, and adds up all rows once all have."""

    # Two sets of rows alternate. A process that writes into one has read the other completely: it waited for a sum
    # there, for which all had written, which they do only after reading the set now being overwritten.

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
        """Set up shared memory made by rank 0; return None if any process cannot share it."""
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
        if self._last is not None:
            self._last.wait()
        self._begun += 1
        rows = self._rows[self._begun % 2, :, : tensor.nbytes].view(tensor.dtype)
        rows[self._rank].copy_(tensor)
        self._say(COUNT, self._begun)
        self._last = SharedSum(self, tensor, rows, self._begun)
        return self._last

    def wait_for(self, number: int) -> None:
        began = looked = time.monotonic()
        for other in range(self._size):
            while self._said(other, COUNT) < number:
                now = time.monotonic()
                if now - looked > LOOK_S:
                    looked = now
                    # A process that ended may have written this row before.
                    if self._has_gone(other) and self._said(other, COUNT) < number:
                        raise RuntimeError(f"the process of rank {other} has ended")
                    if now - began > PATIENCE.total_seconds():
                        raise RuntimeError(f"rank {other} did not take part in a sum within {PATIENCE}")
                os.sched_yield()
                time.sleep(0 if now - began < SPIN_S else PAUSE_S)  # lets other Python threads run, too

    def withdraw(self, number: int) -> None:
        """Take back a contribution; processes that have not used it wait for another one, or find this one gone."""
        self._begun, self._last = number - 1, None
        self._say(COUNT, self._begun)

    def close(self) -> None:
        self._say(GONE, 1)

    def _has_gone(self, other: int) -> bool:
        if self._said(other, GONE):
            return True
        status = process_status(self._said(other, PROCESS))
        return status is None or status[0] in "ZX"

    def _say(self, what: int, value: int) -> None:
        self._lines[self._rank * LINE // 8 + what] = value

    def _said(self, other: int, what: int) -> int:
        return self._lines[other * LINE // 8 + what]


class SharedSum(PendingSum):
    """A sum in progress."""

    def __init__(self, sums: SharedSums, tensor: Tensor, rows: Tensor, number: int) -> None:
        self._left: tuple[SharedSums, Tensor, Tensor, int] | None = sums, tensor, rows, number

    def wait(self) -> None:
        if self._left is None:
            return
        sums, tensor, rows, number = self._left
        self._left = None
        sums.wait_for(number)
        first, second, *others = rows
        torch.add(first, second, out=tensor)  # in order of ranks, so that all processes get the same bits
        for row in others:
            tensor.add_(row)

    def withdraw(self) -> None:
        if self._left is not None:
            sums, *_, number = self._left
            self._left = None
            sums.withdraw(number)


def is_possible() -> bool:
    """Whether processes can share memory, and stores become visible in order (x86-64)."""
    return platform.machine() == "x86_64" and hasattr(os, "memfd_create")


def _all_bytes(size: int, row_bytes: int) -> int:
    return size * LINE + 2 * size * row_bytes


def _new_file(num_bytes: int, files: contextlib.ExitStack) -> str | None:
    try:
        file = os.memfd_create("bow sums")
        files.callback(os.close, file)
        os.posix_fallocate(file, 0, num_bytes)
    except OSError:
        return None
    return f"/proc/{os.getpid()}/fd/{file}"
