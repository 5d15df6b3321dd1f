"""Halving: the best of 32 learning rates by `bow.Halving`, against training all of them to the end.

Contestants: a loop in plain PyTorch and `bow.sweep`, which train every learning rate in full with the same initial
weights and batches, and `bow.sweep(..., stop=bow.Halving(...))`, which stops bad ones early. Each contestant runs in
its own process, and its time includes process start and imports. Repeats differ in their seed.
"""

import functools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.harness import apart, ratios, setting, spread, take_turns

if TYPE_CHECKING:
    from benchmarks.tabular.contestants import Task

AIM = 6.0
"""Target speed-up over the loop, start included."""

LOOP, FULL, HALVING = "loop", "bow, all in full", "bow, halving"
NAMES = (LOOP, FULL, HALVING)
NOISE = 2.0  # standard deviations over seeds of one learning rate

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Config(harness.Config):
    contestants: tuple[str, ...] = setting(NAMES, "contestants", choices=NAMES)
    rates: int = setting(32, "learning rates", least=2, quick=6)
    lowest: float = setting(1e-4, "lowest learning rate")
    highest: float = setting(0.1, "highest learning rate")
    rows: int = setting(4_000, "rows of the data set, a quarter of which is held out", least=16, quick=200)
    batch_size: int = setting(32, "batch size", quick=16)
    epochs: int = setting(27, "epochs of a full training", quick=3)
    reduction: int = setting(3, "reduction factor: one of this many candidates continues", least=2)
    repeats: int = setting(5, "repeats with different seeds", quick=1)
    limit_s: float = setting(300.0, "time limit of a contestant in seconds")

    @property
    def learning_rates(self) -> list[float]:
        """Learning rates, evenly spaced on a logarithmic scale."""
        ratio = self.highest / self.lowest
        return [self.lowest * ratio ** (index / (self.rates - 1)) for index in range(self.rates)]


def measure(config: Config) -> dict[str, Any]:
    """Measure the seconds of all contestants, and the accuracy of every learning rate by seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        task = task_of(config, Path(folder) / "data.pt")

        def turn(name: str) -> dict[str, Any]:
            seed = len(found.get(name, []))
            began = perf_counter()
            made = apart(_train, name, task, config, seed, limit_s=config.limit_s)
            made["seconds"] = perf_counter() - began
            found.setdefault(name, []).append(made)
            harness.say(f"{name}, seed {seed}: {made['seconds']:.1f} s, {_best(made)}")
            return made

        turns = {name: functools.partial(turn, name) for name in NAMES if name in config.contestants}
        take_turns(turns, config.repeats)
    rates = config.learning_rates
    rows = [
        {
            "name": name,
            "seconds": spread([each["seconds"] for each in own], 2),
            "calls": spread([each["call_s"] for each in own], 2),
            "epochs": statistics.fmean(each["epochs"] for each in own),
        }
        for name, own in found.items()
    ]
    return {"aim": AIM, "rates": rates, "contestants": rows, **compared(found, rates)}


def missed(values: Row) -> bool:
    """Whether halving was too slow, or found a worse learning rate."""
    ratio = values["ratio"]
    return ratio is not None and (ratio["median"] < AIM or not all(each["within"] for each in values["repeats"]))


def compared(found: Mapping[str, Sequence[Row]], rates: Sequence[float]) -> dict[str, Any]:
    """By seed the results of the loop and of halving; the speed-up over the loop."""
    if LOOP not in found or HALVING not in found:
        return {"repeats": [], "ratio": None, "full_ratio": None, "noise": None}
    loops, own = found[LOOP], found[HALVING]
    firsts = [_best(each) for each in loops]
    noise = statistics.median(_noise(loops, index) for index in firsts)
    repeats = []
    for seed, (loop, halving) in enumerate(zip(loops, own, strict=True)):
        best, ours = firsts[seed], _best(halving)
        lost = loop["values"][best] - halving["values"][ours]
        repeats.append(
            {
                "seed": seed,
                "loop_rate": rates[best],
                "loop_value": loop["values"][best],
                "rate": rates[ours],
                "value": halving["values"][ours],
                "is_best": best == ours,
                "within": best == ours or lost <= NOISE * noise,
                "loop_s": round(loop["seconds"], 2),
                "seconds": round(halving["seconds"], 2),
            }
        )

    def times(names: Sequence[Row], part: str = "seconds") -> dict[str, Any]:
        return spread(ratios([each[part] for each in loops], [each[part] for each in names]), 2)

    return {
        "repeats": repeats,
        "ratio": times(own),
        "call_ratio": times(own, "call_s"),
        "full_ratio": times(found[FULL]) if FULL in found else None,
        "noise": round(noise, 5),
    }


def task_of(config: Config, file: Path) -> "Task":
    """Write a generated table, a quarter of which is held out, to a file."""
    import numpy as np
    import torch
    from sklearn.datasets import make_classification

    from benchmarks.tabular.contestants import Task
    from bow.members import folds

    rows, targets = make_classification(
        config.rows, 20, n_informative=10, n_classes=4, flip_y=0.05, class_sep=0.7, random_state=0
    )
    inputs, labels = torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(targets.astype(np.int64))
    torch.save((inputs, labels, folds(len(inputs), 4, labels=labels)[:1]), file)
    return Task(str(file), 4, True, config.batch_size, config.epochs, (0,))


def _best(made: Row) -> int:
    """Return the index of the learning rate with the highest value; the first one of ties."""
    values = made["values"]
    return max(range(len(values)), key=lambda index: (-1.0 if values[index] is None else values[index], -index))


def _noise(loops: Sequence[Row], index: int) -> float:
    """Standard deviation of a learning rate's value over seeds."""
    values = [each["values"][index] for each in loops]
    return statistics.stdev(values) if len(values) > 1 else 0.0


# The following functions run in the process of a contestant.


def _train(name: str, task: "Task", config: Config, seed: int) -> dict[str, Any]:
    """Return the value of every learning rate trained to the end, all epochs, and seconds without imports."""
    from benchmarks.tabular.contestants import network  # imports torch

    if name != LOOP:
        import bow

        bow.sweep  # noqa: B018 - imports what it needs
    began = perf_counter()
    values, epochs = _loop(task, config, seed) if name == LOOP else _bow(name, task, config, seed, network)
    return {"values": values, "epochs": epochs, "call_s": perf_counter() - began}


def _loop(task: "Task", config: Config, seed: int) -> tuple[list[Any], float]:
    import torch

    from benchmarks.tabular.contestants import fit, loaded, score

    torch.set_num_threads(1)  # faster than two threads for such a small model
    ((train, held_out),) = loaded(task.file)[2]
    found = [score(fit(task, train, seed, lr), task, held_out) for lr in config.learning_rates]
    return found, float(config.epochs * config.rates)


def _bow(name: str, task: "Task", config: Config, seed: int, network: Any) -> tuple[list[Any], float]:
    import torch

    import bow
    from benchmarks.tabular.contestants import loaded, score

    inputs, targets, ((train, held_out),) = loaded(task.file)
    with tempfile.TemporaryDirectory() as folder:
        result = bow.sweep(
            functools.partial(network, inputs.shape[1], task.width, task.outputs),
            (inputs, targets),
            task.loss,
            variants=[
                bow.Variant(seed=seed, settings={"lr": lr}, train_on=train, validate_on=held_out)
                for lr in config.learning_rates
            ],
            optimizer=torch.optim.AdamW,
            batch_size=task.batch_size,
            epochs=task.epochs,
            stop=bow.Halving("accuracy", reduction=config.reduction) if name == HALVING else None,
            run=bow.Run(folder, progress=False),
        )
    ended = [member.stopped is None for member in result.members]
    values = [score(m.model, task, held_out) if e else None for m, e in zip(result.members, ended, strict=True)]
    return values, float(sum(member.epochs for member in result.members))
