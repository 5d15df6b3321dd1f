"""Which kernels of which stream ran at the same time, by traces of torch's profiler."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # What the profiler calls the work of a GPU


@dataclass(frozen=True)
class KernelRun:
    name: str  # of the kernel
    stream: int  # the number under which the profiler knows its stream
    begin: float  # microseconds
    end: float  # microseconds


@dataclass(frozen=True)
class Overlap:
    """How much of the time several kernels ran."""

    busy_us: float  # microseconds in which at least one ran
    shared_us: float  # microseconds in which kernels of at least two streams ran
    together_us: float  # microseconds in which at least two ran, whatever their streams
    most: int  # the largest number of kernels at the same time


def kernel_runs(trace: dict[str, Any]) -> list[KernelRun]:
    """The kernels of a trace in Chrome's format, by their beginning."""
    runs = [
        KernelRun(
            str(event["name"]),
            int(event.get("args", {}).get("stream", -1)),
            float(event["ts"]),
            float(event["ts"]) + float(event["dur"]),
        )
        for event in trace["traceEvents"]
        if event.get("cat") in ON_DEVICE and event.get("ph") == "X"
    ]
    return sorted(runs, key=lambda run: run.begin)


def overlap(runs: Iterable[KernelRun]) -> Overlap:
    """How much of the time kernels of several streams ran.

    Example:
        >>> overlap([KernelRun("a", 7, 0, 10), KernelRun("b", 8, 5, 15), KernelRun("a", 7, 20, 30)])
        Overlap(busy_us=25.0, shared_us=5.0, together_us=5.0, most=2)
    """
    edges = sorted(
        edge for run in runs for edge in ((run.begin, 1, run.stream), (run.end, 0, run.stream)) if run.end > run.begin
    )
    running: Counter[int] = Counter()
    busy = shared = together = since = 0.0
    most = 0
    for at, begins, stream in edges:
        passed, since = at - since, at
        busy += passed if running else 0
        shared += passed if len(running) > 1 else 0
        together += passed if running.total() > 1 else 0
        if begins:
            running[stream] += 1
        else:
            running[stream] -= 1
            if not running[stream]:
                del running[stream]
        most = max(most, running.total())
    return Overlap(busy, shared, together, most)


def save_small(runs: Sequence[KernelRun], path: Path) -> None:
    """A trace of these kernels alone, for Perfetto: a line for each stream."""
    first = min((run.begin for run in runs), default=0.0)
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": run.name[:80],
            "pid": 0,
            "tid": run.stream,
            "ts": round(run.begin - first, 3),
            "dur": round(run.end - run.begin, 3),
        }
        for run in runs
    ]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ns"}, file)
