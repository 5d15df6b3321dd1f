"""First-come, first-served dispatch of batches, compared with a fixed order.

An LSTM trains on sequences of constant or random length, so that learning tasks have unequal durations, on idle cores
or with another process on one of them. Between two synchronisation tasks, learners wait for each other in every round
with `dispatch="fixed"`, and never with `"first_come"` (CROSSBOW, section 4).
"""

import contextlib
import functools
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import bow
from benchmarks import harness
from benchmarks.harness import rate, ratios, setting, spread, take_turns
from benchmarks.trainings import SGD, Data
from benchmarks.workloads import WORKLOADS, noise_text
from bow.devices import available_cores

FIXED, FIRST_COME = "fixed", "first_come"
LENGTHS = {"one length": (20,), "lengths at random": (5, 10, 20, 40)}
IDLE, BUSY = "idle", "one core busy"
ROUNDS = 64  # prepared in advance, and reused
BURN = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"


@dataclass(frozen=True)
class Config(harness.Config):
    learners: tuple[int, ...] = setting((2, 4), "numbers of learners", quick=(2,))
    every: tuple[int, ...] = setting((1, 4, 16, 64), "rounds from one synchronisation task to the next", quick=(4,))
    machines: tuple[str, ...] = setting((IDLE, BUSY), "other load on the machine", choices=(IDLE, BUSY), quick=(IDLE,))
    batch_size: int = setting(16, "batch size in sequences", quick=2)
    turns: int = setting(9, "number of measurements of each variant", quick=1)
    stint_s: float = setting(0.4, "seconds of a measurement", quick=0.01)


class Learning:
    """A training with prepared batches."""

    def __init__(self, dispatch: str, rounds: list[list[Data]], learners: int, every: int) -> None:
        workload = WORKLOADS["lstm"]
        self._rounds, self.position = rounds, 0
        self.replicas = bow.Replicas(
            workload.model(),
            workload.loss,
            optimizer=SGD,
            learners=learners,
            sync=bow.SMA(every=every),
            engine=bow.Engine("graph", dispatch=dispatch),  # type: ignore[arg-type]
        )

    def __call__(self) -> int:
        """Run the rounds up to a synchronisation task, or one round; returns the number of samples."""
        count = self.replicas.loop.period
        taken = [self._rounds[(self.position + index) % len(self._rounds)] for index in range(count)]
        self.position += count
        self.replicas.rounds_at_once(taken)
        return sum(len(targets) for each in taken for _, targets in each)


def measure(config: Config) -> dict[str, Any]:
    rows = []
    for machine, (data, lengths), learners in itertools.product(config.machines, LENGTHS.items(), config.learners):
        with another() if machine == BUSY else contextlib.nullcontext():
            for every in config.every:
                found = measure_cell(lengths, learners, every, config)
                rows.append({"machine": machine, "data": data, "learners": learners, "every": every, **found})
                harness.say(f"{machine}, {data}, {learners} learners, every {every}: {rows[-1]['ratio']}")
    return {"cores": len(available_cores()), "rows": rows}


@contextlib.contextmanager
def another() -> Iterator[None]:
    """Run another process that computes on the last core."""
    burning = subprocess.Popen([sys.executable, "-c", BURN % available_cores()[-1]])
    try:
        yield
    finally:
        burning.kill()
        burning.wait()


def measure_cell(lengths: tuple[int, ...], learners: int, every: int, config: Config) -> dict[str, Any]:
    """Measure samples per second of both variants in turns."""
    choose = random.Random(0)
    made = {length: noise_text(config.batch_size, length=length) for length in lengths}
    rounds = [[made[choose.choice(lengths)] for _ in range(learners)] for _ in range(ROUNDS)]
    trainings = {dispatch: Learning(dispatch, rounds, learners, every) for dispatch in (FIXED, FIRST_COME)}
    for training in trainings.values():
        while training.position < 2 * ROUNDS:  # the second batch of each length is captured
            training()
    turns = {name: functools.partial(rate, training, config.stint_s) for name, training in trainings.items()}
    rates = take_turns(turns, config.turns)
    for training in trainings.values():
        training.replicas.close()
    both = {name: spread(own, 1) for name, own in rates.items()}
    return {"samples_per_s": both, "ratio": spread(ratios(rates[FIRST_COME], rates[FIXED]), 3)}


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    best = max(values["rows"], key=lambda row: float(row["ratio"]["median"]))
    return {"best": best}
