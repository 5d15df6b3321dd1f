"""Tabular: an MLP on every fold of ten small tables, several members each, by bow and by what one would take instead.

Eight folds with eight members each are 64 models. A contestant has a process of its own, and its time is that of the
whole process: from its start, imports included, to the score of the last model on what was held out. All train the
same folds with the same initial weights, batches and order of the rows, except for skorch, whose order is its own.
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

if TYPE_CHECKING:  # a contestant's process imports this module, and neither bow nor scikit-learn if it uses none
    from benchmarks.tabular.contestants import Task

AIMS = {"others": 1.5, "processes": 3.0}
"""Geometric means over the tables: over the fastest of the others, and over processes that each import torch."""

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
"""By contestant: what it does, and the threads of OpenMP; None: torch's default."""

APART = ("processes", "process per fold")
BOW = "bow"
SAME = 1e-3  # by which mean scores of the same trainings may differ: a model's rounding can move a sample or two

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Config(harness.Config):
    """Settings of the experiment."""

    tables: tuple[str, ...] = setting(NAMES, "data sets", choices=NAMES, quick=("wine", "diabetes"))
    contestants: tuple[str, ...] = setting(tuple(CASES), "who takes part", choices=tuple(CASES))
    folds: int = setting(8, "parts, each held out once", least=2, quick=2)
    members: int = setting(8, "models on every fold", quick=2)
    steps: int = setting(400, "of a training, at least; an epoch where that has more", quick=4)
    repeats: int = setting(2, "turns of each contestant", quick=1)
    limit_s: float = setting(180.0, "seconds after which a contestant is left out")


def measure(config: Config) -> dict[str, Any]:
    """Seconds and scores on every table."""
    found = []
    for name in config.tables:
        found.append(measure_table(name, config))
        harness.say(f"{name}: {found[-1]['over']}")
    return {"aims": AIMS, "tables": found, "summary": summary(found)}


def missed(values: Row) -> bool:
    """Whether bow took part and an aim was."""
    found = values["summary"]
    return not found["is_same"] or any(found[name] is not None and found[name] < aim for name, aim in AIMS.items())


def batch_size_of(rows: int) -> int:
    """What one would take for so many rows."""
    return next((size for most, size in ((2_500, 32), (12_000, 128)) if rows <= most), 256)


def measure_table(name: str, config: Config) -> dict[str, Any]:
    """Everybody on one table, in turns."""
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
    """A table in a file, with its folds; its rows and columns."""
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
    """Mean and standard deviation over folds and members."""
    deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return {"mean": round(statistics.fmean(scores), 4), "deviation": round(deviation, 4)}


def over(rows: Sequence[Row]) -> dict[str, Any]:
    """By turn, the seconds of the fastest of the others, and of the fastest processes, over bow's."""
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
    """How far bow's scores are from those of the loop: of the means, and at most of a single model."""
    loops = [own for name, own in scores.items() if name.startswith("loop")]
    if BOW not in scores or not loops:
        return None
    apart_by = [abs(a - b) for a, b in zip(scores[BOW], loops[0], strict=True)]
    means = abs(statistics.fmean(scores[BOW]) - statistics.fmean(loops[0]))
    return {"means": round(means, 6), "most": round(max(apart_by), 6), "equal": sum(not each for each in apart_by)}


def summary(tables: Sequence[Row]) -> dict[str, Any]:
    """What the aims are about; None where bow did not take part."""

    def mean(name: str) -> float | None:
        own = [each["over"][name]["median"] for each in tables if each["over"][name]]
        return round(statistics.geometric_mean(own), 2) if own else None

    return {
        **{name: mean(name) for name in AIMS},
        "is_same": all(each["gap"] is None or each["gap"]["means"] <= SAME for each in tables),
    }


def page(values: Row) -> dict[str, Any]:
    """What the page needs besides."""
    from benchmarks.tabular.tables import TABLES

    return {"titles": {name: table.title for name, table in TABLES.items()}}


def _train(what: str, task: Any) -> Any:
    from benchmarks.tabular.contestants import train

    return train(what, task)
