"""Random steps that are small enough to look at every placement, and the time of many placements at once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bow.planning.placement.policy import Operations
from bow.planning.placement.training import Placement

GROUPS = {2: 20, 3: 13, 4: 10}
"""By number of devices: so many groups have at least a million placements."""

CHUNK = 2**15
"""So many placements are timed at once: their arrays stay in the processor's caches."""

LATENCY_NS = 20_000
NS_PER_BYTE = 0.1

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SmallStep:
    """Groups with costs on a CPU (device 0) and GPUs.

    Every device runs forward passes in the order of the groups, then backward passes in the opposite order, each as
    soon as what it reads is there. Each direction between two devices is a channel that does one transfer at a time, in
    the order of their makers; forwards one transfer serves all readers on a device, backwards each reader sends its
    own. Until the end of a step a device keeps its groups' weights (with gradients and momentum) and outputs.

    Attributes:
        operations: the groups.
        forward_ns: by group and device.
        backward_ns: by group and device, with the update.
        sent_ns: by group: what a transfer of its output takes.
        kept_bytes: by group: what its device keeps.
        memory_bytes: by device; what needs more does not fit.
    """

    operations: Operations
    forward_ns: Ints
    backward_ns: Ints
    sent_ns: Ints
    kept_bytes: Ints
    memory_bytes: Ints

    def evaluate(self, placements: list[Placement]) -> list[float | None]:
        """Seconds of a step with each placement; None: it does not fit."""
        times = self.times_ns(np.array(placements))
        return [None if time < 0 else time * 1e-9 for time in times.tolist()]

    def times_ns(self, placements: Ints) -> Ints:
        """Nanoseconds of a step with each placement, [placements, groups]; -1: it does not fit."""
        parts = [self._chunk(placements[first : first + CHUNK].T) for first in range(0, len(placements), CHUNK)]
        return np.concatenate(parts)

    def optimum_ns(self) -> int:
        """The least time of all placements; every one is looked at."""
        groups, devices = self.forward_ns.shape
        best = np.iinfo(np.int64).max
        for first in range(0, devices**groups, CHUNK):
            numbers = np.arange(first, min(first + CHUNK, devices**groups))
            times = self._chunk(np.stack([numbers // devices**group % devices for group in range(groups)]))
            best = min(best, times[times >= 0].min(initial=best))
        return int(best)

    @cached_property
    def _readers(self) -> list[list[int]]:
        readers: list[list[int]] = [[] for _ in range(len(self.operations))]
        for maker, reader in self.operations.edges:
            readers[maker].append(reader)
        return readers

    def _chunk(self, placed: Ints) -> Ints:
        count, devices = placed.shape[1], len(self.memory_bytes)
        rows = np.arange(count)
        free, channels = np.zeros((devices, count), np.int64), np.zeros((devices * devices, count), np.int64)
        self._forward(placed, rows, free, channels)
        self._backward(placed, rows, free, channels)
        kept = np.zeros((devices, count), np.int64)
        for group, device in enumerate(placed):
            kept[device, rows] += self.kept_bytes[group]
        return np.where((kept <= self.memory_bytes[:, None]).all(axis=0), free.max(axis=0), -1)

    def _forward(self, placed: Ints, rows: Ints, free: Ints, channels: Ints) -> None:
        devices = len(free)
        ready = np.zeros(placed.shape, np.int64)
        for group, device in enumerate(placed):
            end = np.maximum(free[device, rows], ready[group]) + self.forward_ns[group][device]
            free[device, rows] = end
            for target in range(devices):
                readers = [reader for reader in self._readers[group] if (placed[reader] == target).any()]
                needed = np.zeros(len(rows), bool)
                for reader in readers:
                    needed |= placed[reader] == target
                needed &= device != target
                channel = device * devices + target
                came = np.maximum(end, channels[channel, rows]) + self.sent_ns[group]
                channels[channel[needed], rows[needed]] = came[needed]
                there = np.where(device == target, end, came)
                for reader in readers:
                    here = placed[reader] == target
                    ready[reader][here] = np.maximum(ready[reader], there)[here]

    def _backward(self, placed: Ints, rows: Ints, free: Ints, channels: Ints) -> None:
        devices = len(free)
        ready = np.zeros(placed.shape, np.int64)
        makers = [[maker for maker, reader in self.operations.edges if reader == group] for group in range(len(placed))]
        for group in reversed(range(len(placed))):
            device = placed[group]
            end = np.maximum(free[device, rows], ready[group]) + self.backward_ns[group][device]
            free[device, rows] = end
            for maker in makers[group]:
                channel, is_sent = device * devices + placed[maker], device != placed[maker]
                came = np.maximum(end, channels[channel, rows]) + self.sent_ns[maker]
                channels[channel[is_sent], rows[is_sent]] = came[is_sent]
                ready[maker] = np.maximum(ready[maker], np.where(is_sent, came, end))


def random_step(seed: int, devices: int, *, is_limited: bool, groups: int | None = None) -> SmallStep:
    """Branches of products, lookups and elementwise groups; where memory is limited, no GPU can hold all of them."""
    source = random.Random(seed)
    groups = groups or GROUPS[devices]
    edges = {(source.randrange(max(0, reader - 4), reader), reader) for reader in range(1, groups)}
    edges |= {(source.randrange(reader), reader) for reader in range(2, groups) if source.random() < 0.4}
    kinds = [source.choice(["linear", "linear", "conv2d", "embedding", "add"]) for _ in range(groups)]
    sizes = [(source.choice([32, 64]), source.choice([256, 512, 1024, 2048])) for _ in range(groups)]
    gpu_ns = np.array([_gpu_ns(kind, size, source) for kind, size in zip(kinds, sizes, strict=True)])
    slowdown = np.array([{"embedding": 1.2, "add": 3.0}.get(kind, 12.0) for kind in kinds])
    forward = np.stack([(gpu_ns * slowdown).astype(np.int64), *[gpu_ns] * (devices - 1)], axis=1)
    kept = np.array([4 * rows * columns + 12 * columns * source.choice([256, 1024]) for rows, columns in sizes])
    limit = int(kept.sum() * 1.3 / max(2, devices - 1)) if is_limited else 2**40
    return SmallStep(
        Operations(tuple(kinds), tuple((size,) for size in sizes), tuple(sorted(edges)), devices),
        forward,
        2 * forward,
        np.array([LATENCY_NS + int(NS_PER_BYTE * 4 * rows * columns) for rows, columns in sizes]),
        kept,
        np.array([2**40, *[limit] * (devices - 1)]),
    )


def _gpu_ns(kind: str, size: tuple[int, int], source: random.Random) -> int:
    rows, columns = size
    per_output = {"linear": 2.0, "conv2d": 4.0, "embedding": 0.3, "add": 0.2}[kind]
    return 5_000 + int(rows * columns * per_output * source.uniform(0.5, 1.5))
