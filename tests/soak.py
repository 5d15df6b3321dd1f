"""Train for minutes while learners are added and removed: memory stays constant, and no thread or file is leaked.

`make soak` runs it for ten minutes per engine; `tests/engines/test_soak.py` for a few seconds.

Usage: python -m tests.soak [MINUTES [ENGINE ...]]
"""

import contextlib
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from tests.grouped import of_replicas

MOST_LEARNERS = 6
ROUNDS_BETWEEN_CHANGES = 5
REPORT_S = 30.0
LEAST_CHANGES = 20
SLACK_MIB = 16
VARIANTS: dict[str, dict[str, Any]] = {
    "graph": {"engine": "graph"},
    "graph-compiled": {"engine": "graph", "compile": True},
    "streams": {"engine": "streams"},
}


@dataclass(frozen=True)
class Footprint:
    """Resources of this process."""

    memory_mib: float
    threads: int
    files: int

    @classmethod
    def now(cls) -> "Footprint":
        gc.collect()
        status = Path("/proc/self/status").read_text(encoding="ascii")
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        tasks, files = (len(list(Path(f"/proc/self/{name}").iterdir())) for name in ("task", "fd"))
        return cls(int(resident.split()[1]) / 1024, tasks, files)


@dataclass(frozen=True)
class Soaked:
    """Results of a training with a varying number of learners."""

    before: Footprint
    warm: Footprint
    end: Footprint
    closed: Footprint
    rounds: int
    changes: int


def network() -> nn.Module:
    """A network with convolution, batch norm and dropout: with buffers and random numbers."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 36, 10)
    )


def soak(seconds: float, tell: Callable[[str], None] = lambda line: None, **settings: Any) -> Soaked:
    """Train for this long (longer on slow machines), and add or remove a learner every few rounds."""
    draw = random.Random(0)
    with training(**settings) as replicas:  # the first training creates torch's threads and caches, and loads libraries
        replicas.round([batch() for _ in range(replicas.learners)])
    before = Footprint.now()
    with training(**settings) as replicas:
        changes, warm, told, rounds = 0, None, time.monotonic(), 0
        began = told
        while (elapsed := time.monotonic() - began) < seconds or changes < LEAST_CHANGES:
            for _ in range(ROUNDS_BETWEEN_CHANGES):
                assert replicas.round([batch() for _ in range(replicas.learners)]).isfinite().all()
                rounds += 1
            grow = replicas.learners == 1 or (replicas.learners < MOST_LEARNERS and draw.random() < 0.5)
            replicas.resize(replicas.learners + (1 if grow else -1))
            changes += 1
            if warm is None and elapsed > seconds / 5 and changes >= LEAST_CHANGES / 5:
                warm = Footprint.now()
            if time.monotonic() - told > REPORT_S:
                told = time.monotonic()
                tell(f"{elapsed:5.0f} s  {rounds} rounds  {changes} changes  {Footprint.now()}")
        end = Footprint.now()
    assert warm is not None
    return Soaked(before, warm, end, Footprint.now(), rounds, changes)


@contextlib.contextmanager
def training(**settings: Any) -> Iterator[bow.Replicas]:
    torch.manual_seed(0)
    replicas = bow.Replicas(network(), cross_entropy, **of_replicas(learners=2, device="cpu", **settings))
    try:
        yield replicas
    finally:
        replicas.close()


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 1, 8, 8), torch.randint(10, (8,))


def check(soaked: Soaked) -> None:
    """Assert that nothing grows or leaks."""
    assert soaked.end.memory_mib < soaked.warm.memory_mib + SLACK_MIB, soaked
    assert soaked.closed.threads == soaked.before.threads, soaked
    assert soaked.closed.files == soaked.before.files, soaked


def main(minutes: float = 10, *variants: str) -> None:
    torch.set_num_threads(1)  # as in the tests: excludes torch's own thread pool
    for name in variants or VARIANTS:
        print(f"{name}, {minutes:g} minutes", flush=True)
        soaked = soak(60 * minutes, lambda line: print(line, flush=True), **VARIANTS[name])
        print(soaked, flush=True)
        check(soaked)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *sys.argv[2:])
