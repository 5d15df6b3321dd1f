"""CPU cores of this machine, their division among executors, and their load by other processes."""

import contextlib
import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bow.errors import SettingError, warn_user

LOSS_TURNS, LOSS_WINDOW_S = 5, 0.005

_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")

CPUINFO = Path("/proc/cpuinfo")


def available_cores() -> tuple[int, ...]:
    """Return the cores that this process may use, in ascending order, limited to its quota of CPU time."""
    # Under a quota, one hardware thread per physical core comes first. Only version 2 of Linux's control groups is
    # read.
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = sorted(allowed)
    quota = cpu_quota()
    return tuple(cores if quota is None else sorted(physical_first(cores)[: max(1, math.floor(quota))]))


def cpu_quota() -> float | None:
    """Return the container's CPU quota in cores (`docker run --cpus`); None: no limit."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # ValueError: the quota is "max"
        return None


def processor() -> str:
    if CPUINFO.exists():
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def share_cores(tasks: int, cores: int, threads: int) -> tuple[int, int]:
    """Return how many of several tasks run at once, and the threads of each."""
    places = min(tasks, cores)
    return places, max(1, min(threads, cores) // places)


def threads_loss(
    threads: int, *, unclear: tuple[float, float] = (0.0, math.inf), limit_s: float = math.inf
) -> tuple[float, float, float]:
    """Return the time of an operator on `threads` torch threads, relative to one thread: low, median, high."""
    # Takes several turns, but stops after the first one outside `unclear`, and after `limit_s` seconds.
    import torch

    from bow.timing import time_window

    before, numbers = torch.get_num_threads(), torch.zeros(2**17)

    def seconds(count: int) -> float:
        torch.set_num_threads(count)
        numbers.add_(1)  # wakes them
        return time_window(lambda: numbers.add_(1), LOSS_WINDOW_S)

    losses: list[float] = []
    began = time.perf_counter()
    try:
        while len(losses) < LOSS_TURNS and (not losses or time.perf_counter() - began < limit_s):
            losses.append(seconds(threads) / seconds(1))
            if not unclear[0] <= losses[-1] <= unclear[1]:
                break
    finally:
        torch.set_num_threads(before)
    losses.sort()
    return losses[0], losses[len(losses) // 2], losses[-1]


def core_sets(executors: int | Sequence[int], threads: int = 1) -> list[tuple[int, ...]]:
    """Return disjoint sets of neighbouring cores, one per executor; physical cores first."""
    sizes = [threads] * executors if isinstance(executors, int) else list(executors)
    cores = physical_first(available_cores())
    if sum(sizes) > len(cores):
        listed = str(sizes[0]) if len(set(sizes)) == 1 else ", ".join(map(str, sizes))
        raise SettingError(
            f"{len(sizes)} executors with {listed} threads need {sum(sizes)} cores, this process has "
            f"{len(cores)}; use fewer executors or threads"
        )
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [tuple(cores[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def physical_first(cores: Sequence[int]) -> list[int]:
    """Order cores: first one hardware thread of every physical core (where known), then the second ones."""
    taken: dict[tuple[int, ...], int] = {}
    rank = {}
    for core in cores:
        siblings = siblings_of(core)
        rank[core] = taken.get(siblings, 0)
        taken[siblings] = rank[core] + 1
    return sorted(cores, key=lambda core: (rank[core], core))


def siblings_of(core: int) -> tuple[int, ...]:
    return _read_cores(_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list", core)


@dataclass(frozen=True)
class HardwareThread:
    """A hardware thread, which the system calls a CPU."""

    number: int  # the system's number
    core: int  # its physical core: the lowest number of its threads
    cache: int  # the largest cache that it shares: the lowest number of its threads


def hardware_threads() -> tuple[HardwareThread, ...]:
    return tuple(HardwareThread(each, min(siblings_of(each)), _shared_cache(each)) for each in available_cores())


def cores_with_two_threads() -> int:
    """Number of physical cores, if the second half of `physical_first` repeats them as second threads; else 0."""
    threads = {thread.number: thread.core for thread in hardware_threads()}
    cores = [threads[place] for place in physical_first(available_cores())]
    half = len(cores) // 2
    return half if cores[:half] == cores[half:] and len(set(cores)) == half else 0


def _shared_cache(number: int) -> int:
    """Lowest number of the threads that share the largest cache; equal for levels that are shared alike."""
    indices = (_TOPOLOGY / f"cpu{number}").glob("cache/index*")
    found = [
        (read_number(index / "level") or 0, min(_read_cores(index / "shared_cpu_list", number))) for index in indices
    ]
    return max(found, default=(0, number))[1]


def read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # missing, or a word such as "max"
        return None


def _read_cores(path: Path, otherwise: int) -> tuple[int, ...]:
    try:
        return parse_cores(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return (otherwise,)


def parse_cores(text: str) -> tuple[int, ...]:
    """Parse a list of cores in Linux's format, such as `0-2,8`."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def pin_here(cores: Sequence[int]) -> None:
    """Pin the calling thread, and threads it starts later, to some cores; no cores: leave it unchanged."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def num_threads(threads: int) -> Iterator[None]:
    """Compute with this many torch threads."""
    import torch

    before = torch.get_num_threads()
    if threads != before:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


LOOK_S = 0.3  # length of the observation
BUSY = 0.25  # warn from this many cores in use by others

STAT = Path("/proc/stat")


def busy_cores() -> float:
    """Return the number of this process's cores that others use, over `LOOK_S`; 0 if the system does not report it."""
    try:
        before, began, own = _busy_ticks(), time.perf_counter(), time.process_time()
        time.sleep(LOOK_S)
        ticks = (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0
    busy = (ticks - (time.process_time() - own)) / (time.perf_counter() - began)
    return max(0.0, len(available_cores()) - ((os.cpu_count() or 1) - busy))


def warn_if_busy() -> None:
    """Warn if other processes use cores: measurements then do not predict an idle machine."""
    if (others := busy_cores()) >= BUSY:
        warn_user(
            f"other processes use {min(others, len(available_cores())):.1f} of {len(available_cores())} cores: "
            "measurements taken now do not apply to an idle machine; run the planner again when those processes have "
            "ended",
        )


def _busy_ticks() -> int:
    user, nice, system = map(int, STAT.read_text(encoding="ascii").split()[1:4])
    return user + nice + system
