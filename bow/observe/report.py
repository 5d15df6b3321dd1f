"""The report of a run, and of several to compare: one self-contained HTML page."""

import datetime
import functools
import importlib.resources
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from bow.errors import RunDirectoryError, disk_reason, reason
from bow.files import write_whole
from bow.observe.charts import BLUE, PALETTE, Chart, charts, longest_s
from bow.observe.records import POSITION, SYNTHETIC, Record, is_number, metrics, read_records
from bow.observe.run_directory import RunDirectory
from bow.observe.text import count_text, duration_text, is_share, metric_text, rate_text
from bow.values import given_path

if TYPE_CHECKING:
    from jinja2 import Template


SHOWN_EVENTS = 100
INTERRUPTED = "interrupted"  # the event of a training that was interrupted
DECISION_HEAD = ("engine", "learners", "threads", "samples/s", "lowest", "highest", "trials", "compiling", "decision")


def write_report(run_dir: str | Path) -> Path:
    """Write `report.html` into a run directory, also of a running training; it needs no other file and no network."""
    directory = RunDirectory(given_path("the run directory", run_dir, RunDirectoryError))
    return write_page(directory.report_path, "report.html", run=Report.read(directory), decision_head=DECISION_HEAD)


def write_page(path: Path, template: str, **values: Any) -> Path:
    from jinja2 import UndefinedError

    try:
        write_whole(path, _template(template).render(**values))
    except UndefinedError as error:
        raise RunDirectoryError(f"records of {path.name} are damaged ({reason(error)}); name another run") from error
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be written ({disk_reason(error)}); free space") from error
    return path


def now_text() -> str:
    return f"{datetime.datetime.now():%Y-%m-%d %H:%M}"


class ResultTile(NamedTuple):
    """One result, in large type: a value, a label, and a note."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The contents of the page, in page order."""

    name: str
    settings: Mapping[str, str]
    records: list[Record]

    @classmethod
    def read(cls, directory: RunDirectory) -> "Report":
        if not directory.path.is_dir():
            raise RunDirectoryError(f"{directory.path} is not a directory; name the directory of a run")
        records = continuous(read_records(directory.metrics_path)) if directory.metrics_path.is_file() else []
        if not records:
            raise RunDirectoryError(
                f"{directory.path} contains no records of a run (metrics.jsonl); name the directory of a run"
            )
        return cls(directory.path.resolve().name, dict(flat(directory.read_config())), records)

    @cached_property
    def start(self) -> Record:
        return next((record for record in self.records if record["kind"] == "start"), {})

    @cached_property
    def last(self) -> Record:
        latest: dict[str, Any] = {}
        for record in self.records:
            latest |= {name: value for name, value in record.items() if value is not None}
        return latest

    @property
    def title(self) -> str:
        """The name of the run, without the date prefix of `RunDirectory`."""
        return self._stamp[4] if self._stamp else self.name

    @property
    def state(self) -> str:
        last = [record for record in self.records if record["kind"] == "start" or record.get("event") == INTERRUPTED]
        if last and last[-1]["kind"] != "start":
            return "interrupted"
        return "finished" if self.records[-1]["kind"] == "end" else "not finished"

    @property
    def written(self) -> str:
        return now_text()

    @property
    def headline(self) -> list[str]:
        start = self.start
        model = start.get("model", "")
        if is_number(start.get("parameters")):
            model += f", {count_text(start['parameters'])} parameters"
        engine = " on ".join(str(start[name]) for name in ("engine", "device") if start.get(name))
        synthetic = "synthetic data" if any(event.get("event") == SYNTHETIC for event in self._events) else ""
        return [str(text) for text in (self._began, model, start.get("sync"), engine, synthetic) if text]

    @property
    def summary(self) -> dict[str, str]:
        epochs = [record.get("epochs") for record in self.records if record["kind"] == "start"][-1:]
        last, of = self.last, "".join(f"/{each:g}" for each in epochs if is_number(each))
        by_device = self.start.get("by_device") or [0]  # all alike, unless a partition computes one on several devices
        devices = len(by_device) if all(by_device) else 1
        values: dict[str, float | None] = {**self._final_metrics()}
        values = values or dict(zip(("loss",), self._final_losses, strict=False))
        return {
            "began": self._began,
            "model": str(self.start.get("model", "")),
            "data": data_of(self.settings),
            "learners": value_text(last.get("learners", "")) + (f" x {devices} devices" if devices > 1 else ""),
            "engine": str(self.start.get("engine", "")),
            "epochs": f"{round(last.get('epoch', 0), 2):g}{of}",
            "result": ", ".join(f"{name.replace('_', ' ')} {metric_text(name, values[name])}" for name in values),
            "time": duration_text(last.get("seconds") or last.get("time_s") or 0.0),
            "state": self.state,
        }

    @property
    def tiles(self) -> list[ResultTile]:
        tiles = [self._metric_tile(name, value) for name, value in self._final_metrics().items()]
        if not tiles and (losses := self._final_losses or self.of("rounds", "loss")):
            tiles = [ResultTile(metric_text("loss", losses[-1]), "training loss", "no validation data")]
        last, size = self.last, self.start.get("batch_size")
        learners, samples = last.get("learners"), last.get("samples")
        rounds, reached = last.get("round"), last.get("time_to_target_s")
        note = f"{count_text(rounds)} rounds" if is_number(rounds) else ""
        if is_number(reached):
            note = f"target reached after {duration_text(reached)}"
        in_all = f"{count_text(samples)} samples in total" if is_number(samples) else ""
        batches = f"batches of {size} each" if size else ""
        return [
            *tiles[:2],
            ResultTile(duration_text(last.get("seconds") or last.get("time_s") or 0.0), "training time", note),
            ResultTile(rate_text(last.get("samples_per_s")).removesuffix(" samples/s"), "samples per second", in_all),
            ResultTile(value_text(learners), "learner" if learners == 1 else "learners", batches),
        ]

    @property
    def charts(self) -> list[Chart]:
        return charts(self.records, self.settings)

    @property
    def decisions(self) -> dict[str, str]:
        """The record of the start: the requested settings and bow's choices."""
        hidden = ("kind", "time_s", "run_dir", "rows")
        return {name: fact_text(value) for name, value in self.start.items() if name not in hidden}

    @property
    def calibration(self) -> Record:
        found = [record for record in self.records if record["kind"] == "calibration"]
        return next((record for record in reversed(found) if record.get("rows")), found[-1] if found else {})

    @property
    def decision_table(self) -> list[tuple[bool, list[str]]]:
        return [(row.get("status") == "chosen", _decision(row)) for row in self.calibration.get("rows") or []]

    @property
    def events(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                duration_text(record.get("time_s", 0.0)),
                f"round {fact_text(record.get('round'))}",
                record.get("event", ""),
                record.get("message", ""),
            )
            for record in self._events[:SHOWN_EVENTS]
        ]

    @property
    def hidden_events(self) -> int:
        return max(0, len(self._events) - SHOWN_EVENTS)

    @property
    def epochs(self) -> tuple[list[str], list[list[str]]]:
        records = [record for record in self.records if record["kind"] == "epoch"]
        names = list(dict.fromkeys(name for record in records for name in metrics(record)))
        head = ["epoch", "round", "samples", "training loss"]
        head += ["validation loss" if name == "loss" else name for name in names]
        head += ["samples/s", "learners", "learning rate", "time"]
        return head, [_row(record, names) for record in records]

    def of(self, kind: str, name: str) -> list[float]:
        values = [record.get(name) for record in self.records if record["kind"] == kind]
        return [value for value in values if is_number(value)]

    @property
    def _began(self) -> str:
        stamp = self._stamp
        return str(self.start.get("began", ""))[:16] or (f"{stamp[1]} {stamp[2]}:{stamp[3]}" if stamp else "")

    @cached_property
    def _stamp(self) -> re.Match[str] | None:
        """The date, hour and minute in the directory's name, and the name after them."""
        return re.fullmatch(r"(\d{4}-\d\d-\d\d)_(\d\d)(\d\d)\d\d_(.+)", self.name)

    @cached_property
    def _events(self) -> list[Record]:
        return [record for record in self.records if record["kind"] == "event"]

    def _final_metrics(self) -> dict[str, float]:
        ends = [metrics(record) for record in self.records if record["kind"] in ("epoch", "end")]
        values = next((values for values in reversed(ends) if values), {})
        return dict(sorted(values.items(), key=lambda item: (item[0].startswith("train_"), not is_share(item[0]))))

    @property
    def _final_losses(self) -> list[float | None]:
        """The training loss of the last epoch, None if it is not finite; empty before the first."""
        return [record.get("train_loss") for record in self.records if record["kind"] == "epoch"][-1:]

    def _metric_tile(self, name: str, value: float) -> ResultTile:
        values = self.of("epoch", name)
        note = "of the central model"
        if is_share(name) and values and max(values) > value:
            note = f"best {metric_text(name, max(values))}, in epoch {values.index(max(values)) + 1}"
        label = "validation loss" if name == "loss" else name.replace("_", " ")
        return ResultTile(metric_text(name, value), label, note)


def data_of(settings: Mapping[str, str]) -> str:
    if target := settings.get("data._target_"):
        return target.rpartition(".")[2]
    found = re.match(r"[\w.]+(\[[^\]]*\])?", settings.get("data", ""))
    return found[0] if found else ""


def _decision(row: Mapping[str, Any]) -> list[str]:
    rates = [rate_text(row.get(name)).removesuffix(" samples/s") for name in ("samples_per_s", "low", "high")]
    compiling = duration_text(row["compile_s"]) if row.get("compile_s") else ""
    what = [value_text(row.get(name)) for name in ("engine", "learners", "threads")]
    took = [duration_text(row["seconds"]) if row.get("seconds") else "", compiling]
    return [*what, *rates, *took, f"{row.get('status')}: {row.get('why')}"]


def _row(record: Record, names: list[str]) -> list[str]:
    position = [fact_text(record.get(name)) for name in POSITION]
    values = [metric_text("loss", record.get("train_loss"))]
    values += [metric_text(name, record.get(name)) for name in names]
    rate = rate_text(record.get("samples_per_s")).removesuffix(" samples/s")
    speed = [rate, value_text(record.get("learners")), value_text(record.get("lr"))]
    return [*position, *values, *speed, duration_text(record.get("time_s", 0.0))]


def value_text(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.10g}"
    return ", ".join(map(value_text, value)) if isinstance(value, list) else str(value)


def fact_text(value: Any) -> str:
    """Format a fact about the run: like a setting, but counts with thousands separators."""
    return count_text(value) if is_number(value) and isinstance(value, int) else value_text(value)


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested settings to the command line's names, such as `optimizer.lr`."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value_text(value)


@functools.cache
def _template(name: str) -> "Template":
    import jinja2

    def read(name: str) -> str:
        return importlib.resources.files("bow.observe").joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def continuous(records: Sequence[Record]) -> list[Record]:
    """Join the records of an interrupted and resumed run into those of an uninterrupted one."""
    attempts: list[list[Record]] = []
    for record in records:
        if not attempts or record["kind"] == "start":
            attempts.append([])
        attempts[-1].append(record)
    kept: list[Record] = []  # rounds repeated after a resume count once, the last time
    for attempt in attempts:
        begin = min((_ended_before(record) for record in attempt if "round" in record), default=math.inf)
        again = {record.get("event") for record in attempt if record.get("round") == begin}
        kept = [record for record in kept if _stays(record, begin, again)]
        reached = max((record.get("time_s", 0.0) for record in kept), default=0.0)
        began = min((record.get("time_s", 0.0) for record in attempt[1:]), default=reached)
        offset = reached if began < reached else 0.0
        kept += [{**record, "time_s": max(reached, record.get("time_s", 0.0) + offset)} for record in attempt]
    return kept


def _stays(record: Record, begin: float, again: Collection[str | None]) -> bool:
    """Return whether a later attempt, which begins behind some rounds and has these events there, leaves a record."""
    if record["kind"] == "event" and record.get("round") == begin:  # in the next round, which is repeated, or behind it
        return record.get("event") not in again
    return record["kind"] != "end" and _ended_before(record) < begin


def _ended_before(record: Record) -> int:
    """Return how many rounds had ended before that of a record; events have its index."""
    number: int = record.get("round", 0)
    return number if record["kind"] == "event" else number - 1


PROVENANCE = ("commit", "versions", "machine")
UNCOMPARED = ("run.path", "run.resume")


class RunComparison:
    """The contents of the page; the parts of a single run's page are empty."""

    state: ClassVar[str] = ""
    headline: ClassVar[Sequence[str]] = ()
    tiles: ClassVar[Sequence[Any]] = ()
    decisions: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, names: Sequence[str], reports: Sequence[Report]) -> None:
        self.names = names
        self.reports = reports
        self.name = self.title = " and ".join(names)
        self.written = now_text()

    @cached_property
    def results(self) -> list[list[str]]:
        names = dict.fromkeys(name for report in self.reports for name in report.summary)
        return [[name, *(report.summary.get(name, "") for report in self.reports)] for name in names]

    @cached_property
    def differences(self) -> list[list[str]]:
        known = [
            {**report.settings, **{name: str(report.start.get(name, "")) for name in PROVENANCE}}
            for report in self.reports
        ]
        names = dict.fromkeys(name for each in known for name in each if name not in UNCOMPARED)
        rows = [[name, *(each.get(name, "") for each in known)] for name in names]
        return [row for row in rows if len(set(row[1:])) > 1]

    @property
    def charts(self) -> list[Chart]:
        """Charts that each combine the runs' curves of one kind, one colour per run."""
        longest, drawn = max(longest_s(report.records) for report in self.reports), dict[str, Chart]()
        for name, report, color in zip(self.names, self.reports, itertools.cycle((BLUE, *PALETTE)), strict=False):
            for chart in charts(report.records, report.settings, longest):
                line = [each for each in chart.series if each.points][-1]  # the validation curve if there is one
                of = f"{name} ({line.name})" if len(chart.series) > 1 else name
                before = drawn[chart.title].series if chart.title in drawn else ()
                series = [*before, replace(line, name=of, color=color)]
                drawn[chart.title] = replace(chart, series=series, target=None)
        return list(drawn.values())
