"""How fast a device computes and copies: measured, in about a second."""

import statistics
import time
from collections.abc import Callable

import torch

from bow.planning.problem.device_topology import DeviceKind

SIDE = {"cpu": 512, "cuda": 4096}
"""Of the square matrices whose product is timed."""

COPIED = {"cpu": 2**24, "cuda": 2**28}
"""Elements of float32 that are copied: far more than caches hold."""

STARTED = 200
"""So many small operators are started to see what starting one costs."""

REPEATS = 5

HALF_OUTPUTS = {"cpu": 64, "cuda": 4 * 128}
"""Results at which a product runs at half its speed: on a GPU for each multiprocessor, four for each of 128 units."""


def device_kind(device: torch.device, name: str, memory_gib: float, threads: int | None = None) -> DeviceKind:
    """A kind of device, with the speeds that this one has just now."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        return _measured(device, name, memory_gib)
    finally:
        torch.set_num_threads(before)


def _measured(device: torch.device, name: str, memory_gib: float) -> DeviceKind:
    side, copied = SIDE[device.type], COPIED[device.type]
    left, right = torch.randn(2, side, side, device=device)
    source = torch.randn(copied, device=device)
    target, small = torch.empty_like(source), torch.randn(16, device=device)
    product_s = _time_s(device, lambda: torch.mm(left, right))
    copy_s = _time_s(device, lambda: target.copy_(source))

    def start_some() -> None:
        for _ in range(STARTED):
            torch.tanh(small)

    units = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return DeviceKind(
        name,
        memory_gib=memory_gib,
        tflops=2 * side**3 / product_s / 1e12,
        gb_per_s=2 * copied * source.element_size() / copy_s / 1e9,
        overhead_us=_time_s(device, start_some) / STARTED * 1e6,
        half_outputs=HALF_OUTPUTS[device.type] * units,
    )


def _time_s(device: torch.device, run: Callable[[], object]) -> float:
    """The median over some runs, the first one left out."""
    times = []
    for _ in range(1 + REPEATS):
        _finish(device)
        start = time.perf_counter()
        run()
        _finish(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
