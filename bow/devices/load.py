"""How busy others keep this machine's cores, which what is measured meanwhile depends on."""

import os
import time
import warnings
from pathlib import Path

from bow.devices.cores import available_cores

LOOK_S = 0.3  # over which it is seen
BUSY = 0.25  # cores that others use are worth a word from here on

STAT = Path("/proc/stat")


def busy_cores() -> float:
    """How many cores others keep from this process, over a moment; 0 where the system does not say."""
    try:
        before, began, own = _busy_ticks(), time.perf_counter(), time.process_time()
        time.sleep(LOOK_S)
        ticks = (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0
    busy = (ticks - (time.process_time() - own)) / (time.perf_counter() - began)
    return max(0.0, len(available_cores()) - ((os.cpu_count() or 1) - busy))


def warn_if_busy() -> None:
    """Warn that what is measured is not what an idle machine takes, if others use cores of this one."""
    if (others := busy_cores()) >= BUSY:
        warnings.warn(
            f"other processes use {min(others, len(available_cores())):.1f} of {len(available_cores())} cores: what is "
            "measured meanwhile predicts no idle machine; plan again when they have ended",
            stacklevel=4,
        )


def _busy_ticks() -> int:
    user, nice, system = map(int, STAT.read_text(encoding="ascii").split()[1:4])
    return user + nice + system
