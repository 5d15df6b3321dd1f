"""CPU load by other processes, which distorts measurements."""

import os
import time
import warnings
from pathlib import Path

from bow.devices.cores import available_cores

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
        warnings.warn(
            f"other processes use {min(others, len(available_cores())):.1f} of {len(available_cores())} cores: "
            "measurements taken now do not apply to an idle machine; run the planner again when those processes have "
            "ended",
            stacklevel=4,
        )


def _busy_ticks() -> int:
    user, nice, system = map(int, STAT.read_text(encoding="ascii").split()[1:4])
    return user + nice + system
