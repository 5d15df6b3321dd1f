"""The charts of the report, drawn by matplotlib as SVG without its global state."""

import html
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from bow.observe.records import VALIDATION, Record, is_number, metrics
from bow.observe.text import is_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREY = "#2563a8", "#d9822b", "#8a94a6"
PALETTE = ("#d9822b", "#2c7a4b", "#7b5ea7", "#c0443c", "#1f8a8a", "#8c6d46", "#c76b98", "#5b6577")
MAX_POINTS = 500  # longer series are reduced to this many means, to keep the page small
STEPS = [1, 2, 2.5, 5, 10]  # ticks are multiples of these

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.edgecolor": "#c5ccd8",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": "#5b6577",
    "axes.axisbelow": True,
    "xtick.color": "#c5ccd8",
    "ytick.color": "#c5ccd8",
    "xtick.labelcolor": "#5b6577",
    "ytick.labelcolor": "#5b6577",
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "grid.color": "#e8ebf1",
    "grid.linewidth": 0.8,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
}


Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line of a chart: points (x, y) in order of x; `faint` for single measurements shown under a mean."""

    name: str
    points: Sequence[Point]
    color: str = BLUE
    faint: bool = False


@dataclass(frozen=True)
class ChartAxis:
    """Format of an axis: `percent` for shares, `whole` for counts, `zero` if the axis begins at 0."""

    label: str = ""
    percent: bool = False
    whole: bool = False
    zero: bool = False
    log_ticks: Sequence[float] = ()  # makes the axis logarithmic, with these labels


@dataclass(frozen=True)
class Chart:
    """A line chart."""

    title: str  # quantity, and what it is plotted over
    series: Sequence[Series]  # lines; empty ones are omitted
    x: ChartAxis  # horizontal axis
    # The vertical axis; logarithmic if the values span more than a factor of 30.
    y: ChartAxis = ChartAxis()
    steps: bool = False  # values hold until the next one
    target: float | None = None  # drawn as a dashed line

    @property
    def points(self) -> list[Point]:
        return [point for series in self.series for point in series.points]

    @property
    def legend(self) -> list[Series]:
        """One series per name, a faint one only if it is the only one; empty for a single name."""
        shown = {
            series.name: series for series in sorted(self.series, key=lambda series: not series.faint) if series.points
        }
        return list(shown.values()) if len(shown) > 1 else []

    def svg(self) -> str:
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context({**STYLE, "svg.hashsalt": self.title}):
            figure = Figure(figsize=(5.8, 2.5), layout="constrained")
            axes = figure.add_subplot()
            for series in self.series:
                self._draw(axes, series)
            self._dress(axes)
            text = io.StringIO()
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(text, format="svg", transparent=True, metadata=nothing)
        return _inline(text.getvalue(), self.title)

    def _draw(self, axes: "Axes", series: Series) -> None:
        points = thin(series.points)
        if not points:
            return
        x, y = zip(*points, strict=True)
        axes.plot(
            x,
            y,
            color=series.color,
            linewidth=1.0 if series.faint else 1.8,
            alpha=0.45 if series.faint else 1.0,
            drawstyle="steps-post" if self.steps else "default",
            marker="o" if len(points) == 1 or (len(points) <= 30 and not series.faint and not self.steps) else "",
            markersize=3.5,
            zorder=2 if series.faint else 3,
        )

    def _dress(self, axes: "Axes") -> None:
        from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter

        axes.set_xlabel(self.x.label)
        axes.grid(axis="y")
        axes.margins(x=0.02, y=0.08)
        if self.target is not None:
            axes.axhline(self.target, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        if self._ratio() > 30:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if self._ratio() < 1000 else (1,)))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.minorticks_off()
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=STEPS, integer=self.y.whole))
        percent, number = lambda value, _: f"{100 * value:.6g} %", lambda value, _: f"{value:,.6g}"
        axes.yaxis.set_major_formatter(percent if self.y.percent else number)
        if self.x.log_ticks:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(FixedLocator(self.x.log_ticks))
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(8, steps=STEPS, integer=self.x.whole))
        axes.xaxis.set_major_formatter(number)
        if self.x.zero:
            axes.set_xlim(left=0)
        if self.y.zero:
            axes.set_ylim(0, 1.15 * max(value for _, value in self.points) or 1)

    def _ratio(self) -> float:
        """Ratio of largest to smallest value; 1 where a logarithmic axis is impossible."""
        values = [value for _, value in self.points]
        return 1.0 if self.y.zero or self.y.percent or min(values) <= 0 else max(values) / min(values)


def thin(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """Reduce points to at most `most`: the means of equal sections."""
    if len(points) <= most:
        return list(points)
    edges = [index * len(points) // most for index in range(most + 1)]
    parts = [points[begin:end] for begin, end in pairwise(edges)]
    return [(fmean(x for x, _ in part), fmean(y for _, y in part)) for part in parts]


def _inline(document: str, title: str) -> str:
    element = document[document.index("<svg") :]
    opening, rest = element.split(">", 1)
    view_box = opening[opening.index('viewBox="') :].split('"')[1]
    attributes = f'viewBox="{view_box}" role="img" aria-label="{html.escape(title)}"'
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"<svg {names} {attributes}>{rest}"


EPOCHS = ChartAxis("epochs", whole=True, zero=True)


class Clock(NamedTuple):
    """The horizontal axis of a curve: epochs or time."""

    name: str
    axis: ChartAxis
    read: Callable[[Record], float | None]


EPOCH_CLOCK = Clock("epochs", EPOCHS, lambda record: record.get("epoch"))


def charts(records: Sequence[Record], settings: Mapping[str, str], longest: float | None = None) -> list[Chart]:
    """Return a run's charts, over epochs and over time in a unit that suits `longest` seconds."""
    time = _time(longest_s(records) if longest is None else longest)
    clocks = (EPOCH_CLOCK, time)
    names = dict.fromkeys(name for record in records if record["kind"] in VALIDATION for name in metrics(record))
    others = sorted((name for name in names if name != "loss"), key=lambda name: not is_share(name))
    drawn = [_metric(records, name, clock, settings) for name in others for clock in clocks]
    drawn += [_loss(records, clock, settings) for clock in clocks]
    drawn += [_throughput(records, time), _learners(records, time), _learning_rate(records), _noise_scale(records)]
    return [chart for chart in drawn if chart.points]


def _metric(records: Sequence[Record], name: str, clock: Clock, settings: Mapping[str, str]) -> Chart:
    points = _points(records, clock, VALIDATION, name)
    y, target = ChartAxis(percent=is_share(name)), _target(settings, name)
    return Chart(f"{titled(name)} over {clock.name}", [Series(name, points)], clock.axis, y, target=target)


def titled(name: str) -> str:
    words = name.replace("_", " ")
    return f"{words[:1].upper()}{words[1:]}"


def _loss(records: Sequence[Record], clock: Clock, settings: Mapping[str, str]) -> Chart:
    series = [
        Series("training", _points(records, clock, ("rounds",), "loss"), ORANGE, faint=True),
        Series("training", _points(records, clock, ("epoch",), "train_loss"), ORANGE),
        Series("validation", _points(records, clock, VALIDATION, "loss"), BLUE),
    ]
    return Chart(f"Loss over {clock.name}", series, clock.axis, target=_target(settings, "loss"))


def _throughput(records: Sequence[Record], time: Clock) -> Chart:
    points = _points(records, time, ("rounds",), "samples_per_s")
    if len(points) < 2:
        points = _points(records, time, ("epoch",), "samples_per_s")
    return Chart("Samples per second", [Series("samples/s", points)], time.axis, ChartAxis(zero=True))


def _learners(records: Sequence[Record], time: Clock) -> Chart:
    points = [
        (seconds, float(record["learners"]))
        for record in records
        if is_number(record.get("learners")) and (seconds := time.read(record)) is not None
    ]
    # Only changes, and the last point, which shows how long the last value held.
    changes = [point for index, point in enumerate(points) if index == 0 or point[1] != points[index - 1][1]]
    series = Series("learners", [*changes, *points[-1:]])
    return Chart("Learners per device", [series], time.axis, ChartAxis(whole=True, zero=True), steps=True)


def _learning_rate(records: Sequence[Record]) -> Chart:
    """Chart the learning rate if it changes; otherwise the settings show it."""
    points = _points(records, EPOCH_CLOCK, ("rounds", *VALIDATION), "lr")
    varies = len({rate for _, rate in points}) > 1
    return Chart("Learning rate over epochs", [Series("learning rate", points if varies else [])], EPOCHS, steps=True)


def _noise_scale(records: Sequence[Record]) -> Chart:
    series = Series("noise scale", _points(records, EPOCH_CLOCK, ("epoch",), "noise_scale"))
    return Chart("Gradient noise scale over epochs", [series], EPOCHS)


def _points(records: Iterable[Record], clock: Clock, kinds: Sequence[str], name: str) -> list[Point]:
    found = ((clock.read(record), record.get(name)) for record in records if record["kind"] in kinds)
    return [(x, y) for x, y in found if is_number(x) and is_number(y)]


def longest_s(records: Sequence[Record]) -> float:
    return max((record.get("time_s") or 0.0 for record in records), default=0.0)


def _time(longest: float) -> Clock:
    unit, size = ("h", 3600) if longest >= 7200 else ("min", 60) if longest >= 120 else ("s", 1)

    def read(record: Record) -> float | None:
        seconds = record.get("time_s")
        return seconds / size if is_number(seconds) else None

    return Clock("time", ChartAxis(f"time ({unit})", zero=True), read)


def _target(settings: Mapping[str, str], name: str) -> float | None:
    try:
        return float(settings[f"validation.target.{name}"])
    except (KeyError, ValueError):
        return None
