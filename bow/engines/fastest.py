"""Choose the fastest of several implementations by measurement, once per machine."""

import contextlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import torch

from bow.compiling import cache_folder
from bow.errors import RuntimeUnavailableError
from bow.files import JsonCache
from bow.schedule.profiler.measuring import hardware

Case: TypeAlias = Callable[[str], Callable[[], object]]  # returns the function to time for an implementation's name
GAIN = 0.4  # largest time relative to the first one: a smaller gain may be lost in combination with others
HOPELESS = 10.0  # times the shortest time: slower ones are not timed again; a busy machine can slow one down a lot
TURNS, CALLS = 5, 8
QUEUED_CYCLES = 10_000_000  # about 5 ms, in which the host issues the timed work


def place(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def fastest(names: Sequence[str], case: Case, device: torch.device, *described: object) -> str:
    """Return the name of the fastest implementation; the first one if no other is clearly faster."""
    key = [hardware(place(device)), *names, *described]
    found = None
    with contextlib.suppress(OSError, RuntimeUnavailableError):  # no cache folder
        cache = JsonCache(cache_folder() / "fastest")
        found = cache.find(key, lambda name: name if name in names else None)
        if found is None:
            found = _measured(names, case, device)
            cache.store(key, found)
    return found or _measured(names, case, device)


def _measured(names: Sequence[str], case: Case, device: torch.device) -> str:
    # In its own thread: the caller may be in a trace of the compiler, in `vmap` or within modes.
    with ThreadPoolExecutor(1) as pool:
        seconds = pool.submit(_seconds, names, case, device).result()
    best = min(names, key=lambda name: seconds[name])
    return best if seconds[best] < GAIN * seconds[names[0]] else names[0]


@torch.no_grad()
def _seconds(names: Sequence[str], case: Case, device: torch.device) -> dict[str, float]:
    seconds = {}
    for name in names:
        with contextlib.suppress(RuntimeError):  # out of memory, or no kernel
            case(name)()
            seconds[name] = math.inf
    for _ in range(TURNS):
        limit = HOPELESS * min(seconds.values(), default=0.0)
        for name in [name for name in seconds if seconds[name] <= limit]:
            seconds[name] = min(seconds[name], _time(case(name), device))
    return {name: seconds.get(name, math.inf) for name in names}


def _time(run: Callable[[], object], device: torch.device) -> float:
    marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        torch.cuda._sleep(QUEUED_CYCLES)  # type: ignore[no-untyped-call]  # so that the device never waits for the host
        marks[0].record()
        for _ in range(CALLS):
            run()
        marks[1].record()
    marks[1].synchronize()
    return float(marks[0].elapsed_time(marks[1])) / CALLS
