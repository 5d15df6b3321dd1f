"""Timing contestants against each other: in turns within one process, so that what else runs hits all alike."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

WARMUP_CALLS = 3  # Before anything is timed: the first call compiles, the next ones allocate


@dataclass(frozen=True)
class Contestant:
    """Something whose speed is measured."""

    run: Callable[[], int]  # does a piece of work and returns how many samples that was
    threads: int = 1  # torch's threads while it runs


@dataclass(frozen=True)
class Spread:
    """A number that was measured several times."""

    median: float  # of all measurements
    low: float  # the smallest
    high: float  # the largest
    n: int  # how many there were

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise measurements, at least one."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def scaled(self, factor: float) -> "Spread":
        """The same in another unit."""
        return Spread(factor * self.median, factor * self.low, factor * self.high, self.n)

    def as_dict(self, digits: int) -> dict[str, Any]:
        """The values, rounded."""
        rounded = {name: round(getattr(self, name), digits) for name in ("median", "low", "high")}
        return {**rounded, "n": self.n}


def warm_up(contestant: Contestant, clock: Callable[[], float] = time.perf_counter) -> float:
    """Run a contestant a few times."""
    torch.set_num_threads(contestant.threads)
    began = clock()
    contestant.run()
    first_s = clock() - began
    for _ in range(WARMUP_CALLS - 1):
        contestant.run()
    return first_s


def race(
    contestants: Sequence[Contestant],
    repeats: int,
    stint_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Let contestants take turns: in every repeat each runs for a stint, every other repeat in reverse order.

    A hopelessly slow contestant (two threads on a busy machine can be a hundred times slower than one) costs one
    call a stint: when that takes longer than the stint, it is the measurement.
    """
    threads = torch.get_num_threads()
    rates: list[list[float]] = [[] for _ in contestants]
    for repeat in range(repeats):
        order = range(len(contestants))
        for index in order if repeat % 2 == 0 else reversed(order):
            rates[index].append(_stint(contestants[index], stint_s, clock))
    torch.set_num_threads(threads)
    return rates


def ratios(rates: Sequence[float], baseline: Sequence[float]) -> Spread:
    """How much faster than the baseline, repeat by repeat."""
    return Spread.of([rate / base for rate, base in zip(rates, baseline, strict=True)])


def _stint(contestant: Contestant, seconds: float, clock: Callable[[], float]) -> float:
    torch.set_num_threads(contestant.threads)
    run = contestant.run
    began = clock()
    samples, now = run(), clock()
    if now - began < seconds:  # that call filled the caches and woke the threads: it does not count
        samples, began = 0, now
    while now - began < seconds:
        samples += run()
        now = clock()
    return samples / (now - began)
