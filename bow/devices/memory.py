"""Total and free memory of a GPU or of the host."""

import os
from pathlib import Path

import torch

from bow.devices.base import StreamDevice
from bow.devices.cores import read_number
from bow.devices.cuda import cuda_device

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_bytes(place: torch.device | StreamDevice) -> int:
    if isinstance(place, StreamDevice):
        return place.free_bytes()
    return cuda_device(place).free_bytes() if place.type == "cuda" else host_memory()[1]


def host_memory() -> tuple[int, int]:
    """Return total and free memory of this machine in bytes, or of the container if its limit is lower."""
    values = {}
    if MEMINFO.exists():
        lines = (line.split() for line in MEMINFO.read_text(encoding="ascii").splitlines())
        values = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = values.get("MemTotal", pages)
    available = values.get("MemAvailable", total)
    limit, used = _cgroup()
    if limit is None or limit >= total:
        return total, available
    return limit, min(available, max(limit - used, 0))


def _cgroup() -> tuple[int | None, int]:
    for folder, limit, used, cached in (
        (CGROUP, "memory.max", "memory.current", "inactive_file"),
        (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        if (limit_bytes := read_number(folder / limit)) is not None:
            return limit_bytes, max((read_number(folder / used) or 0) - _statistic(folder / "memory.stat", cached), 0)
    return None, 0


def _statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
