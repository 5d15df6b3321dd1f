"""From the values of a figure to its picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures.catalogue import FIGURES, View
from benchmarks.figures.charts import Box, Curve, Level, draw_boxes, draw_curves
from benchmarks.figures.convergence import LAST_EPOCHS, smoothed
from benchmarks.figures.entries import BOW, PLAIN_TITLE, PYTORCH, SYNC_TITLES, Row, title
from benchmarks.figures.paper import Measure
from benchmarks.harness import counted

AXES = {
    "learners": "learners on the device",
    "batch_size": "batch size (samples per learner)",
    "devices": "devices",
    "entry": "",
}
MEASURES: dict[Measure, str] = {
    "samples_per_s": "throughput (samples/s)",
    "time_s": "time to accuracy (s)",
    "epochs": "epochs to accuracy",
}


def draw(name: str, values: Mapping[str, Any], path: Path) -> None:
    """Draw a figure from what its JSON file holds."""
    view = FIGURES[name].view
    assert view is not None
    if view.curves:
        y = f"test accuracy, median of {LAST_EPOCHS} epochs"
        draw_curves(path, curves(values["rows"]), "training time (s)", y, values["target"])
        return
    level = None if view.x in ("batch_size", "entry") else _level(values["rows"], view.x)
    rows = [row for row in values["rows"] if level is None or row["system"] != PYTORCH]
    y = MEASURES[view.measure]
    if "target" in values:
        y = y.replace("accuracy", f"{values['target']:.0%} accuracy")
    draw_boxes(path, boxes(rows, view), AXES[view.x], y, level)


def boxes(rows: Sequence[Row], view: View) -> list[Box]:
    """A box for each entry, from all of its runs or trainings."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((_place(row, view.x), _series(row, view.series)), []).append(row)
    return [Box(*key, _values(own, view.measure), _note(own, view.measure)) for key, own in groups.items()]


def curves(rows: Sequence[Row]) -> list[Curve]:
    """The accuracy of every training over time."""
    return [Curve(f"batch {row['batch_size']:,}", row["times_s"], smoothed(row["accuracies"])) for row in rows]


def _place(row: Row, x: str) -> str:
    if x == "entry":
        return "\n".join((*title(row).split(", "), f"batch {row['batch_size']}"))
    return f"{row[x]:,}"


def _series(row: Row, fields: Sequence[str]) -> str:
    if "system" in fields:
        return title(row)
    if not fields:
        return PLAIN_TITLE if row["system"] == PYTORCH else BOW
    words = {"learners": lambda k: f"{counted(k, 'learner')} each", "sync": SYNC_TITLES.__getitem__}
    return ", ".join(words[field](row[field]) for field in fields)


def _values(rows: Sequence[Row], measure: Measure) -> list[float]:
    found: list[float] = []
    for row in rows:
        value = row[measure]
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def _note(rows: Sequence[Row], measure: Measure) -> str:
    if any("refused" in row for row in rows):
        return "refused"
    never = sum(row[measure] is None for row in rows)
    if not never:
        return ""
    return "never" if never == len(rows) else f"{never} of {len(rows)} never"


def _level(rows: Sequence[Row], x: str) -> Level:
    """Plain PyTorch, which has neither learners nor further devices."""
    name = f"{PLAIN_TITLE}, 1 device" if x == "devices" else PLAIN_TITLE
    return Level(name, _values([row for row in rows if row["system"] == PYTORCH], "samples_per_s"))
