"""A device that averages with others: NCCL in a world of one process, and sums hidden behind learning tasks."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import bow
from benchmarks.gpu.machine import Machine
from bow.cluster import PendingSum, Processes, TrialWorld, World
from bow.cluster.processes import Ranks
from tests.gpu.case import Case
from tests.gpu.trainings import batches, exact, few, is_fake, training, weights

NO_TIME = "on the fake device, work runs when it is issued"

SLEEP_CYCLES = 2_000_000
"""About a millisecond, many times what a sum takes."""

ENGINES = ("eager", "graph", "streams", "graph+round", "fused")


class Slow(Processes):
    """Processes whose sums take a while on the stream that they are issued on."""

    def sum(self, tensor: Tensor) -> PendingSum:
        pending = super().sum(tensor)
        torch.cuda._sleep(SLEEP_CYCLES)
        return pending


def cases(fake: bool) -> list[Case]:
    return [
        *(
            Case(
                f"a world of one process trains as one device alone: {engine}, {name}",
                functools.partial(_one, engine, name),
            )
            for engine in ENGINES
            for name in ("sma", "ssgd", "two levels")
        ),
        *(
            Case(f"the sum is hidden behind learning tasks: {engine}", functools.partial(_hidden, engine), NO_TIME)
            for engine in ("graph", "streams")
        ),
    ]


@contextlib.contextmanager
def _world(machine: Machine, kind: type[Processes] = Processes) -> Iterator[World]:
    if is_fake(machine):
        yield TrialWorld()
        return
    device = machine.device.torch_device
    own = kind(device, Ranks(0, 1, 0, 1), dist.HashStore())
    try:
        yield own
    finally:
        own.close()


def _sync(name: str) -> bow.SMA | bow.SSGD | bow.TwoLevel:
    if name == "two levels":
        return bow.TwoLevel(bow.SMA(), bow.DiLoCo(every=2))
    return bow.SMA() if name == "sma" else bow.SSGD()


def _one(engine: str, name: str, machine: Machine) -> None:
    learners, rounds = 2, few(machine, 20, 5)
    dealt = [batches(machine, "mlp", t, learners) for t in range(rounds)]
    with _world(machine) as world, exact():
        found = []
        for own in (world, None):
            others = {} if own is None else {"world": own}
            with training(machine, "mlp", engine, learners=learners, sync=_sync(name), **others) as replicas:
                for each in dealt:
                    replicas.round(each)
                found.append(weights(machine, replicas))
    difference = float((found[0] - found[1]).abs().max())
    assert difference <= 1e-4, f"weights differ by {difference:g}"


def _hidden(engine: str, machine: Machine) -> None:
    learners = 2
    dealt = [batches(machine, "lenet", t, learners) for t in range(4)]
    with (
        _world(machine, Slow) as world,
        tempfile.TemporaryDirectory() as folder,
        training(machine, "lenet", engine, learners=learners, sync=bow.SMA(), world=world) as replicas,
    ):
        for _ in range(3):
            replicas.rounds_at_once(dealt)
        before = world.sums

        def run() -> None:
            replicas.rounds_at_once(dealt)

        with machine.device.issuing():
            runs = machine.trace(run, Path(folder) / "trace.json")
        assert world.sums - before == len(dealt), f"{world.sums - before} sums in {len(dealt)} rounds"
    sleeps = [run for run in runs if "spin" in run.name.lower()]
    assert sleeps, "the profiler saw no sum"
    hidden = [
        sleep
        for sleep in sleeps
        if any(run.stream != sleep.stream and run.begin < sleep.end and sleep.begin < run.end for run in runs)
    ]
    assert len(hidden) >= len(sleeps) // 2, f"{len(hidden)} of {len(sleeps)} sums ran beside learning tasks"
