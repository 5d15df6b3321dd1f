"""Tabular data: an MLP on every fold of ten small tables, several members each, by bow and by its alternatives.

Eight folds with eight members each are 64 models. A contestant runs in its own process, and its time is that of the
whole process: from its start, including imports, to the score of the last model on held-out rows. All train the same
folds with the same initial weights, batches and order of the rows, except for skorch, which has its own order.
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
from benchmarks.harness import apart, first_words, ratios, setting, spread, take_turns

if TYPE_CHECKING:  # a contestant's process imports this module, but not bow or scikit-learn unless it uses them
    from benchmarks.tabular.contestants import Task

AIMS = {"others": 1.5, "processes": 3.0}
"""Geometric means over the tables of speed-ups: over the fastest other contestant, and over processes."""

NAMES = (
    "wine", "breast_cancer", "diabetes", "digits", "classes", "moons", "friedman1", "hastie", "friedman2",
    "many_classes",
)  # fmt: skip
CASES = {
    "loop of one thread": ("loop", "1"),
    "loop": ("loop", None),
    "processes": ("processes", None),
    "process per fold": ("process per fold", None),
    "skorch": ("skorch", None),
    "bow": ("bow", None),
}
"""By contestant: description, and number of OpenMP threads; None: torch's default."""

APART = ("processes", "process per fold")
BOW = "bow"
SAME = 1e-3  # tolerance of mean scores of equal trainings: rounding can change the class of a sample or two

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Config(harness.Config):
    tables: tuple[str, ...] = setting(NAMES, "data sets", choices=NAMES, quick=("wine", "diabetes"))
    contestants: tuple[str, ...] = setting(tuple(CASES), "contestants", choices=tuple(CASES))
    folds: int = setting(8, "number of folds, each held out once", least=2, quick=2)
    members: int = setting(8, "number of models on every fold", quick=2)
    steps: int = setting(400, "minimum steps of a training; at least one epoch", quick=4)
    repeats: int = setting(2, "number of measurements", quick=1)
    limit_s: float = setting(180.0, "time limit of a contestant in seconds")


def measure(config: Config) -> dict[str, Any]:
    """Measure seconds and scores on every table."""
    found = []
    for name in config.tables:
        found.append(measure_table(name, config))
        harness.say(f"{name}: {found[-1]['over']}")
    return {"aims": AIMS, "tables": found, "summary": summary(found)}


def missed(values: Row) -> bool:
    """Whether bow took part and missed an aim."""
    found = values["summary"]
    return not found["is_same"] or any(found[name] is not None and found[name] < aim for name, aim in AIMS.items())


def batch_size_of(rows: int) -> int:
    """Return a typical batch size for this many rows."""
    return next((size for most, size in ((2_500, 32), (12_000, 128)) if rows <= most), 256)


def measure_table(name: str, config: Config) -> dict[str, Any]:
    """Measure all contestants on one table, in turns."""
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        task, rows, columns = task_of(name, config, Path(folder) / "data.pt")
        scores: dict[str, Sequence[float]] = {}

        def turn(case: str) -> float:
            what, threads = CASES[case]
            began = perf_counter()
            scores[case] = apart(_train, what, task, environment={"OMP_NUM_THREADS": threads}, limit_s=config.limit_s)
            return perf_counter() - began

        turns = {case: functools.partial(turn, case) for case in CASES if case in config.contestants}
        seconds = take_turns(
            turns,
            config.repeats,
            failed=lambda case, error: notes.append(f"{case}: left out, {first_words(error)}"),
        )
    rows_of = [
        {"name": case, "seconds": spread(took, 2), "turns": [round(s, 2) for s in took], "score": scored(scores[case])}
        for case, took in seconds.items()
    ]
    head = {"table": name, "rows": rows, "columns": columns, "is_classes": task.is_classes}
    trained = {"batch_size": task.batch_size, "epochs": task.epochs}
    return {**head, **trained, "contestants": rows_of, "notes": notes, "over": over(rows_of), "gap": gap(scores)}


def task_of(name: str, config: Config, file: Path) -> tuple["Task", int, int]:
    """Write a table with its folds to a file; returns the task, and the number of rows and columns."""
    import torch

    from benchmarks.tabular.contestants import Task
    from benchmarks.tabular.tables import TABLES, data_of
    from bow.members import folds

    inputs, targets = data_of(name)
    is_classes = TABLES[name].is_classes
    pairs = folds(len(inputs), config.folds, labels=targets if is_classes else None)
    torch.save((inputs, targets, pairs), file)
    batch_size = batch_size_of(len(inputs))
    rows = len(inputs) * (config.folds - 1) // config.folds
    epochs = max(1, round(config.steps * batch_size / rows))
    outputs = int(targets.max()) + 1 if is_classes else 1
    return Task(str(file), outputs, is_classes, batch_size, epochs, tuple(range(config.members))), *inputs.shape


def scored(scores: Sequence[float]) -> dict[str, float]:
    """Return mean and standard deviation over folds and members."""
    deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return {"mean": round(statistics.fmean(scores), 4), "deviation": round(deviation, 4)}


def over(rows: Sequence[Row]) -> dict[str, Any]:
    """Speed-ups of bow by turn: over the fastest other contestant, and over the fastest processes."""
    own = next((row for row in rows if row["name"] == BOW), None)
    groups = {
        "others": [row for row in rows if row["name"] != BOW],
        "processes": [row for row in rows if row["name"] in APART],
    }
    best = {name: min(group, key=lambda row: row["seconds"]["median"], default=None) for name, group in groups.items()}
    return {
        name: None
        if own is None or other is None
        else {"best": other["name"], **spread(ratios(other["turns"], own["turns"]), 2)}
        for name, other in best.items()
    }


def gap(scores: Mapping[str, Sequence[float]]) -> dict[str, Any] | None:
    """Difference between bow's scores and those of the loop: of the means, and the largest of a single model."""
    loops = [own for name, own in scores.items() if name.startswith("loop")]
    if BOW not in scores or not loops:
        return None
    apart_by = [abs(a - b) for a, b in zip(scores[BOW], loops[0], strict=True)]
    means = abs(statistics.fmean(scores[BOW]) - statistics.fmean(loops[0]))
    return {"means": round(means, 6), "most": round(max(apart_by), 6), "equal": sum(not each for each in apart_by)}


def summary(tables: Sequence[Row]) -> dict[str, Any]:
    """Return the quantities of the aims; None if bow did not take part."""

    def mean(name: str) -> float | None:
        own = [each["over"][name]["median"] for each in tables if each["over"][name]]
        return round(statistics.geometric_mean(own), 2) if own else None

    return {
        **{name: mean(name) for name in AIMS},
        "is_same": all(each["gap"] is None or each["gap"]["means"] <= SAME for each in tables),
    }


def page(values: Row) -> dict[str, Any]:
    from benchmarks.tabular.tables import TABLES

    return {"titles": {name: table.title for name, table in TABLES.items()}}


def _train(what: str, task: Any) -> Any:
    from benchmarks.tabular.contestants import train

    return train(what, task)
