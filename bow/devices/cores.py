"""The cores of this machine, and how executors share them."""

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bow.errors import SettingError

LOSS_TURNS, LOSS_WINDOW_S = 5, 0.005

_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")

CPUINFO = Path("/proc/cpuinfo")


def available_cores() -> tuple[int, ...]:
    """The cores that this process may use, in ascending order; no more than its share of processor time fills.

    Of those, one hardware thread of every physical core first. Only version 2 of Linux's control groups is looked at.

    Example:
        >>> len(available_cores()) >= 1
        True
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = sorted(allowed)
    quota = cpu_quota()
    return tuple(cores if quota is None else sorted(physical_first(cores)[: max(1, math.floor(quota))]))


def cpu_quota() -> float | None:
    """The processors' worth of time that this process's container may use (`docker run --cpus`); None: no limit."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # ValueError: the quota is "max"
        return None


def processor() -> str:
    """The model name of the processor."""
    if CPUINFO.exists():
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def share_cores(tasks: int, cores: int, threads: int) -> tuple[int, int]:
    """How many tasks of several run at once, and with how many threads each.

    Example:
        >>> share_cores(tasks=2, cores=8, threads=8), share_cores(tasks=4, cores=2, threads=2)
        ((2, 4), (2, 1))
    """
    places = min(tasks, cores)
    return places, max(1, min(threads, cores) // places)


def threads_loss(threads: int) -> tuple[float, float, float]:
    """How many times as long as one thread torch's take for an operator that they share: low, median, high."""
    import torch

    from bow.timing import time_window

    before, numbers = torch.get_num_threads(), torch.zeros(2**17)

    def seconds(count: int) -> float:
        torch.set_num_threads(count)
        numbers.add_(1)  # which wakes them
        return time_window(lambda: numbers.add_(1), LOSS_WINDOW_S)

    try:
        losses = sorted(seconds(threads) / seconds(1) for _ in range(LOSS_TURNS))
    finally:
        torch.set_num_threads(before)
    return losses[0], losses[LOSS_TURNS // 2], losses[-1]


def core_sets(executors: int | Sequence[int], threads: int = 1) -> list[tuple[int, ...]]:
    """Disjoint sets of neighbouring cores, one per executor, of physical cores as long as there are any."""
    sizes = [threads] * executors if isinstance(executors, int) else list(executors)
    cores = physical_first(available_cores())
    if sum(sizes) > len(cores):
        raise SettingError(
            f"{len(sizes)} executors with {_listed(sizes)} threads need {sum(sizes)} cores, this process has "
            f"{len(cores)}; use fewer executors or threads"
        )
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [tuple(cores[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def physical_first(cores: Sequence[int]) -> list[int]:
    """The cores with one hardware thread of every physical core, as far as is known, in front of all second ones."""
    taken: dict[tuple[int, ...], int] = {}
    rank = {}
    for core in cores:
        siblings = siblings_of(core)
        rank[core] = taken.get(siblings, 0)
        taken[siblings] = rank[core] + 1
    return sorted(cores, key=lambda core: (rank[core], core))


def siblings_of(core: int) -> tuple[int, ...]:
    """The hardware threads of the physical core that this one belongs to, itself included."""
    return _read_cores(_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list", core)


@dataclass(frozen=True)
class HardwareThread:
    """What the system calls a CPU."""

    number: int  # by which the system knows it
    core: int  # the physical core that it belongs to, by the lowest number there
    cache: int  # the largest cache that it shares with others, by the lowest number there


def hardware_threads() -> tuple[HardwareThread, ...]:
    return tuple(HardwareThread(each, min(siblings_of(each)), _shared_cache(each)) for each in available_cores())


def cores_with_two_threads() -> int:
    """How many physical cores there are, if executors that follow behind one on each are on their second threads."""
    threads = {thread.number: thread.core for thread in hardware_threads()}
    cores = [threads[place] for place in physical_first(available_cores())]
    half = len(cores) // 2
    return half if cores[:half] == cores[half:] and len(set(cores)) == half else 0


def _shared_cache(number: int) -> int:
    """The lowest number of those that share the largest cache; of levels that are shared alike, it is the same."""
    indices = (_TOPOLOGY / f"cpu{number}").glob("cache/index*")
    found = [(_level(index), min(_read_cores(index / "shared_cpu_list", number))) for index in indices]
    return max(found, default=(0, number))[1]


def _level(index: Path) -> int:
    try:
        return int((index / "level").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _read_cores(path: Path, otherwise: int) -> tuple[int, ...]:
    try:
        return parse_cores(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return (otherwise,)


def parse_cores(text: str) -> tuple[int, ...]:
    """Read a list of cores as Linux writes it, such as `0-2,8`."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def _listed(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(set(sizes)) == 1 else ", ".join(map(str, sizes))


def pin_here(cores: Sequence[int]) -> None:
    """Keep the calling thread, and those that it starts from now on, to some cores; none given: leave it as it is."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
