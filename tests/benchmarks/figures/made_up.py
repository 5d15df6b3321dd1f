"""Made-up results of `python -m benchmarks figures`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures.convergence import Run
from benchmarks.figures.entries import Entry

ABOUT: dict[str, Any] = {
    "command": "python -m benchmarks figures",
    "date": "2026-01-02T03:04:05+00:00",
    "seconds": 60.0,
    "environment": {
        "processor": "a processor",
        "cores": 2,
        "memory_gib": 7.5,
        "gpus": [],
        "system": "Linux x86_64",
        "python": "3.11.9",
        "torch": "2.13.0",
        "bow": "0.1.0",
    },
    "form": "small",
    "device": "cpu",
    "fixed": "all else",
    "amount": "3 runs",
}


def rates(entry: Entry, *values: float) -> dict[str, Any]:
    """A row of a figure of throughput."""
    engine = None if entry.learners is None else "graph"
    return {**entry.as_dict(), "threads": 1, "engine": engine, "samples_per_s": list(values)}


def refused(entry: Entry, sentence: str) -> dict[str, Any]:
    """A row that bow refused."""
    return {**rates(entry), "engine": None, "threads": None, "refused": sentence}


def run(entry: Entry, accuracies: Sequence[float], epoch_s: float = 1.0, seed: int = 0) -> Run:
    """A training whose epochs take equally long."""
    times_s = tuple(epoch_s * epoch for epoch in range(1, len(accuracies) + 1))
    return Run(entry, seed, 1, None, tuple(accuracies), times_s, 100 * len(accuracies), False, 1.0)


def throughput(*rows: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a figure of throughput."""
    return {**ABOUT, "model": "ResNet-8", "rows": list(rows)}


def convergence(*runs: Run, target: float = 0.9, best: int = 16, small: int = 4) -> dict[str, Any]:
    """The JSON of a figure of convergence."""
    about = {**ABOUT, "model": "LeNet", "data": "digits", "target": target, "best_batch_size": best}
    return {**about, "small_batch": small, "rows": [each.as_dict(target) for each in runs]}


def write(folder: Path, stem: str, values: Mapping[str, Any]) -> None:
    """Write it where the page looks for it."""
    (folder / f"{stem}.json").write_text(json.dumps(values))
