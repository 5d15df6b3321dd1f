"""Pictures of the figures: box plots and curves over time, from their JSON files."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures.catalogue import FIGURES, View
from benchmarks.figures.convergence import LAST_EPOCHS, smoothed
from benchmarks.figures.forms import BOW, PLAIN_TITLE, PYTORCH, SYNC_TITLES, Row, title, values_of
from benchmarks.harness import counted
from benchmarks.harness.pictures import COLORS, picture
from benchmarks.harness.pictures import GREY as GREY_INK
from bow.observe.charts import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHED: dict[str, Any] = {"color": GREY_INK, "linewidth": 1.3, "linestyle": (0, (4, 3))}
TICKS = (0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)  # of accuracy axes

LEAST = 0.002  # shares closer to 1 than this are drawn here, because the axis is logarithmic in 1 - share

NOTE_ROOM = 1.45  # height of the axis, relative to the highest box, if a note may be above one

LETTERS_PER_INCH, HANDLE_LETTERS = 14, 7  # of the legend

MIN_WIDTH = 4.6
WIDTH = 0.8  # of all boxes at one position of the axis; positions are 1 apart

WIDEST = 0.45  # of a single box

GAP = 0.12  # between two boxes, as a fraction of a box


AXES = {
    "learners": "learners on the device",
    "batch_size": "batch size (samples per learner)",
    "devices": "devices",
    "entry": "",
}
MEASURES: dict[str, str] = {
    "samples_per_s": "throughput (samples/s)",
    "time_s": "time to accuracy (s)",
    "epochs": "epochs to accuracy",
}


@dataclass(frozen=True)
class Box:
    place: str  # position on the horizontal axis
    series: str  # determines the colour; empty if there is only one
    values: Sequence[float]  # empty if there is only a note
    note: str = ""  # text in place of the box, or above it


@dataclass(frozen=True)
class Level:
    """A horizontal line across all boxes, with a band for the range of its values."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Curve:
    series: str
    x: Sequence[float]
    y: Sequence[float]


def draw_boxes(path: Path, boxes: Sequence[Box], x: str, y: str, level: Level | None = None) -> None:
    """Draw boxes: quartiles, a line at the median, whiskers to 1.5 times the interquartile range, points beyond."""
    places, series = list(dict.fromkeys(box.place for box in boxes)), list(dict.fromkeys(box.series for box in boxes))
    with picture(path, max(MIN_WIDTH, 1.4 + 0.5 * (len(places) + len(boxes))), 3.1) as figure:
        axes = figure.add_subplot()
        if level is not None:
            _draw_level(axes, level)
        top = max((value for box in boxes for value in box.values), default=1.0)
        for index, place in enumerate(places):
            here = [box for box in boxes if box.place == place]
            width = min(WIDEST, WIDTH / len(here))
            for position, box in enumerate(here):
                middle = index + (position - (len(here) - 1) / 2) * width
                _draw_box(axes, box, middle, width * (1 - GAP), _color(series, box.series), top)
        axes.set_xticks(range(len(places)), places)
        axes.set_xlim(-0.6, len(places) - 0.4)
        room = NOTE_ROOM if any(box.note and box.values for box in boxes) else 1.12
        axes.set_ylim(0, room * max([top, *(level.values if level else ())]))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        _label(axes, x, y)
        _legend(axes, {name: _color(series, name) for name in series if name}, None if level is None else level.name)


def draw_curves(path: Path, curves: Sequence[Curve], x: str, y: str, target: float) -> None:
    """Draw shares over time, on an axis that is logarithmic in 1 - share, and the target as a dashed line."""
    from matplotlib.ticker import FixedLocator, NullLocator

    series = list(dict.fromkeys(curve.series for curve in curves))
    with picture(path, 5.8, 3.1) as figure:
        axes = figure.add_subplot()
        for curve in curves:
            lacking = [max(LEAST, 1 - share) for share in curve.y]
            axes.plot(curve.x, lacking, color=_color(series, curve.series), linewidth=1.2, alpha=0.85)
        axes.axhline(1 - target, **DASHED)
        axes.set_yscale("log")
        axes.invert_yaxis()
        axes.yaxis.set_major_locator(FixedLocator([1 - tick for tick in TICKS]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda lacking, _: f"{100 * (1 - lacking):.3g}%")
        axes.set_xlim(left=0)
        _label(axes, x, y)
        _legend(axes, {name: _color(series, name) for name in series}, f"target {target:.0%}")


def _draw_box(axes: "Axes", box: Box, middle: float, width: float, color: str, top: float) -> None:
    line: dict[str, Any] = {"color": color, "linewidth": 1.1}
    if box.values:
        axes.boxplot(
            [list(box.values)],
            positions=[middle],
            widths=width,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": color + "40", "edgecolor": color, "linewidth": 1.1},
            medianprops={**line, "linewidth": 1.8},
            whiskerprops=line,
            capprops=line,
            flierprops={"marker": "o", "markersize": 3, "markeredgecolor": color, "markerfacecolor": "none"},
        )
    if box.note:
        height = max(box.values, default=0.0) + 0.03 * top
        axes.annotate(box.note, (middle, height), color=color, ha="center", va="bottom", rotation=90)


def _draw_level(axes: "Axes", level: Level) -> None:
    axes.axhspan(min(level.values), max(level.values), color=GREY, alpha=0.2, linewidth=0)
    axes.axhline(statistics.median(level.values), **DASHED)


def _label(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y")


def _legend(axes: "Axes", colors: Mapping[str, str], dashed: str | None) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, linewidth=3, label=name) for name, color in colors.items()]
    if dashed is not None:
        handles.append(Line2D([], [], label=dashed, **DASHED))
    if handles:
        width = axes.figure.get_figure(root=True).get_figwidth()
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, int(LETTERS_PER_INCH * width / (longest + HANDLE_LETTERS)))
        axes.figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False)


def _color(series: Sequence[str], name: str) -> str:
    """Return a series' colour; plain PyTorch is always grey."""
    if name == PLAIN_TITLE:
        return GREY_INK
    return COLORS[[other for other in series if other != PLAIN_TITLE].index(name) % len(COLORS)]


def draw(name: str, values: Mapping[str, Any], path: Path) -> None:
    """Draw a figure from the contents of its JSON file."""
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
    """Return a box for each entry, from all of its runs or trainings."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((_place(row, view.x), _series(row, view.series)), []).append(row)
    return [Box(*key, values_of(own, view.measure), _note(own, view.measure)) for key, own in groups.items()]


def curves(rows: Sequence[Row]) -> list[Curve]:
    """Return the accuracy of every training over time."""
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


def _note(rows: Sequence[Row], measure: str) -> str:
    if any("refused" in row for row in rows):
        return "refused"
    never = sum(row[measure] is None for row in rows)
    if not never:
        return ""
    return "never" if never == len(rows) else f"{never} of {len(rows)} never"


def _level(rows: Sequence[Row], x: str) -> Level:
    """The level of plain PyTorch, which has neither learners nor several devices."""
    name = f"{PLAIN_TITLE}, 1 device" if x == "devices" else PLAIN_TITLE
    return Level(name, values_of([row for row in rows if row["system"] == PYTORCH], "samples_per_s"))
