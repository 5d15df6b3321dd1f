"""Which curves the report of a run shows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from bow.observe.charts import BLUE, ORANGE, Axis, Chart, Point, Series
from bow.observe.records import VALIDATION, Record, is_number, metrics
from bow.observe.text import is_share

EPOCHS = Axis("epochs", whole=True, zero=True)


class Clock(NamedTuple):
    """What a curve is drawn over."""

    name: str
    axis: Axis
    read: Callable[[Record], float | None]


def charts(records: Sequence[Record], settings: Mapping[str, str]) -> list[Chart]:
    """The curves of a run, two in a row: every metric over epochs and over time, throughput, learners."""
    time = _time(records)
    clocks = (Clock("epochs", EPOCHS, lambda record: record.get("epoch")), time)
    names = dict.fromkeys(name for record in records if record["kind"] in VALIDATION for name in metrics(record))
    others = sorted((name for name in names if name != "loss"), key=lambda name: not is_share(name))
    drawn = [_metric(records, name, clock, settings) for name in others for clock in clocks]
    drawn += [_loss(records, clock, settings) for clock in clocks]
    drawn += [_throughput(records, time), _learners(records, time)]
    return [chart for chart in drawn if chart.points]


def _metric(records: Sequence[Record], name: str, clock: Clock, settings: Mapping[str, str]) -> Chart:
    points = _points(records, clock, VALIDATION, name)
    words = name.replace("_", " ")
    y = Axis(percent=is_share(name))
    return Chart(
        f"{words[:1].upper()}{words[1:]} over {clock.name}",
        [Series(name, points)],
        clock.axis,
        y,
        target=_target(settings, name),
    )


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
    return Chart("Samples per second", [Series("samples/s", points)], time.axis, Axis(zero=True))


def _learners(records: Sequence[Record], time: Clock) -> Chart:
    points = [
        (seconds, float(record["learners"]))
        for record in records
        if is_number(record.get("learners")) and (seconds := time.read(record)) is not None
    ]
    # A point where the number changes is enough, and the last one says how long it held.
    changes = [point for index, point in enumerate(points) if index == 0 or point[1] != points[index - 1][1]]
    series = Series("learners", [*changes, *points[-1:]])
    return Chart("Learners per device", [series], time.axis, Axis(whole=True, zero=True), steps=True)


def _points(records: Iterable[Record], clock: Clock, kinds: Sequence[str], name: str) -> list[Point]:
    found = ((clock.read(record), record.get(name)) for record in records if record["kind"] in kinds)
    return [(x, y) for x, y in found if is_number(x) and is_number(y)]


def _time(records: Sequence[Record]) -> Clock:
    longest = max((record.get("time_s") or 0.0 for record in records), default=0.0)
    unit, size = ("h", 3600) if longest >= 7200 else ("min", 60) if longest >= 120 else ("s", 1)

    def read(record: Record) -> float | None:
        seconds = record.get("time_s")
        return seconds / size if is_number(seconds) else None

    return Clock("time", Axis(f"time ({unit})", zero=True), read)


def _target(settings: Mapping[str, str], name: str) -> float | None:
    try:
        return float(settings[f"target.{name}"])
    except (KeyError, ValueError):
        return None
