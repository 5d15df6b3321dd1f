"""Performance events of operators: computed from their work, or counted by the hardware through perf_event_open."""

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.cost_models.climbing import Threads
from benchmarks.cost_models.machine import Work
from bow.errors import SettingError

INSTRUCTIONS = "instructions"
"""The event that all others are divided by."""

PAPERS = ("cycles", "cache_misses", "cache_accesses", "l1_hits")
"""The four that Liu et al. chose from 26, besides the time."""

LINE_BYTES, VECTOR_BYTES, FLOAT_BYTES = 64, 64, 4
CLOCK_HZ, CACHE_BYTES = 1.4e9, 2**20


@dataclass(frozen=True)
class Sample:
    """One run of an operator in one case, as a regression sees it.

    Attributes:
        time_s: seconds that it took.
        events: how often each happened, by name; `instructions` among them.

    Example:
        >>> Sample(1e-3, {"instructions": 2e6, "cycles": 3e6}).normalised()
        {'cycles': 1.5}
    """

    time_s: float
    events: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.events.get(INSTRUCTIONS, 0) > 0:
            raise SettingError(f"events need {INSTRUCTIONS} above 0 to be divided by, got {dict(self.events)}")

    def normalised(self) -> dict[str, float]:
        """The events for each instruction, so that operators of any length can be compared."""
        instructions = self.events[INSTRUCTIONS]
        return {name: count / instructions for name, count in self.events.items() if name != INSTRUCTIONS}


def computed_events(work: Work, case: Threads, time_s: float) -> dict[str, float]:
    """Stand-ins for counted events where a machine counts none, from an operator's work and its measured time.

    They go by the names of what they stand for, on cores with vectors of 64 bytes: `instructions` are multiply-adds,
    loads and stores of vectors; `cycles` the time of all threads at 1.4 GHz; `cache_accesses` the cache lines moved;
    `cache_misses` those beyond what the caches in use hold (1 MiB each); `l1_hits` the operands of arithmetic that no
    line is fetched for. `flops` and `bytes` are as they are. Unlike counted ones they are exact.

    Example:
        >>> events = computed_events(Work("aten.mm.default", 6.4e9, 6.4e7), Threads(2), 1e-2)
        >>> sorted(events)
        ['bytes', 'cache_accesses', 'cache_misses', 'cycles', 'flops', 'instructions', 'l1_hits']
        >>> events["cycles"], events["cache_accesses"]
        (28000000.0, 1000000.0)
    """
    lines = work.bytes_moved / LINE_BYTES
    vectors = VECTOR_BYTES / FLOAT_BYTES
    caches = -(-case.threads // 2) if case.shared else case.threads
    return {
        INSTRUCTIONS: max(1.0, work.flops / (2 * vectors) + work.bytes_moved / VECTOR_BYTES),
        "cycles": time_s * CLOCK_HZ * case.threads,
        "cache_accesses": lines,
        "cache_misses": max(0.0, lines - caches * CACHE_BYTES / LINE_BYTES),
        "l1_hits": max(0.0, work.flops / vectors - lines),
        "flops": work.flops,
        "bytes": work.bytes_moved,
    }


_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _SOFTWARE, _CACHE = 0, 1, 3
_LAST_LEVEL, _L1_DATA = 2, 0
_ACCESS, _MISS = 0, 1

_DISABLED, _INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_TIMES = 0b11  # read back for how long a counter was enabled, and for how long it really counted
_ENABLE, _DISABLE, _RESET = 0x2400, 0x2401, 0x2403
_READING = struct.Struct("QQQ")


@dataclass(frozen=True)
class Event:
    """Something that can be counted.

    Attributes:
        name: for people, and in `Sample.events`.
        type: as `perf_event_open` numbers it.
        config: likewise.
    """

    name: str
    type: int
    config: int


def _cached(level: int, outcome: int) -> int:
    """A read of a cache, as `perf_event_open` numbers it."""
    return level | outcome << 16


HARDWARE = (
    Event("cycles", _HARDWARE, 0),
    Event("instructions", _HARDWARE, 1),
    Event("cache_accesses", _CACHE, _cached(_LAST_LEVEL, _ACCESS)),
    Event("cache_misses", _CACHE, _cached(_LAST_LEVEL, _MISS)),
    Event("l1_accesses", _CACHE, _cached(_L1_DATA, _ACCESS)),
    Event("l1_misses", _CACHE, _cached(_L1_DATA, _MISS)),
)
"""What Liu et al. chose, and what it is normalised by."""

CPU_TIME = Event("cpu_time_ns", _SOFTWARE, 1)
"""Counted by the kernel, on any machine that permits counting at all."""

Opener: TypeAlias = Callable[[Event, int], int]
"""Opens a counter of an event in a thread, switched off; returns a file descriptor or raises `OSError`."""


def open_counter(event: Event, thread: int) -> int:
    """Ask the system for a counter."""
    number = _SYSCALLS.get(platform.machine())
    if number is None or platform.system() != "Linux":
        raise OSError(f"no perf_event_open on {platform.system()} {platform.machine()}")
    flags = _DISABLED | _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    size = 112
    attributes = struct.pack("IIQQQQQ", event.type, size, event.config, 0, 0, _TIMES, flags).ljust(size, b"\0")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    descriptor: int = syscall(number, attributes, thread, -1, -1, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def why_not(events: Sequence[Event] = HARDWARE, opener: Opener = open_counter) -> str | None:
    """Why events cannot be counted here, in a few words; None where they can.

    Example:
        >>> def refuse(event: Event, thread: int) -> int:
        ...     raise PermissionError(13, "Permission denied")
        >>> why_not(opener=refuse)
        'cycles: Permission denied'
    """
    for event in events:
        try:
            os.close(opener(event, 0))
        except OSError as error:
            return f"{event.name}: {error.strerror or error}"
    return None


def source(events: Sequence[Event] = HARDWARE, opener: Opener = open_counter) -> str:
    """One sentence: whether events are counted or computed here, and why."""
    reason = why_not(events, opener)
    if reason is None:
        return f"Performance events are hardware counters ({', '.join(event.name for event in events)})."
    return (
        f"Performance events are computed from operators' work and times, as `computed_events` says: this machine "
        f"counts none (perf_event_open, {reason})."
    )


def count(
    work: Callable[[], object], events: Sequence[Event] = HARDWARE, opener: Opener = open_counter
) -> dict[str, float]:
    """Count what happens in all threads of this process, and in those that they start, while something runs.

    Where there are fewer counters than events, they take turns, and counts are scaled to the whole time. `l1_hits` is
    added where accesses and misses were counted.
    """
    with contextlib.ExitStack() as stack:
        opened = [(event.name, _opened(event, thread, opener, stack)) for event in events for thread in _threads()]
        _tell(opened, _RESET)
        _tell(opened, _ENABLE)
        try:
            work()
        finally:
            _tell(opened, _DISABLE)
        counts = dict.fromkeys((event.name for event in events), 0.0)
        for name, descriptor in opened:
            counts[name] += _read(descriptor)
    if {"l1_accesses", "l1_misses"} <= counts.keys():
        counts["l1_hits"] = max(0.0, counts["l1_accesses"] - counts["l1_misses"])
    return counts


def _threads() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc/self/task").iterdir())


def _opened(event: Event, thread: int, opener: Opener, stack: contextlib.ExitStack) -> int:
    descriptor = opener(event, thread)
    stack.callback(os.close, descriptor)
    return descriptor


def _tell(opened: Sequence[tuple[str, int]], request: int) -> None:
    import fcntl  # not there on every system that can import this file

    for _, descriptor in opened:
        fcntl.ioctl(descriptor, request, 0)


def _read(descriptor: int) -> float:
    value, enabled, running = _READING.unpack(os.read(descriptor, _READING.size))
    return value * enabled / running if running else 0.0
