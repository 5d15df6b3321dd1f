"""Report of a sweep: a self-contained HTML page with curves, a table of members and comparisons."""

import contextlib
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bow.errors import RunDirectoryError, SettingError
from bow.members.member import FOLD, FOLDER, Member, Variant
from bow.members.result import Sweep
from bow.members.saving import MEMBERS, folder_of
from bow.members.stopping import BEATEN
from bow.observe import RunDirectory, read_records
from bow.observe.charts import BLUE, EPOCHS, GREY, PALETTE, Chart, ChartAxis, Series, titled
from bow.observe.records import Record, is_number
from bow.observe.report import Report, ResultTile, flat, value_text, write_page
from bow.observe.text import count_text, duration_text, gap_text, interval_text, is_share, metric_text, rate_text

CHANCE = ("seed", FOLD)  # settings to pair over, which are not compared themselves
FEW = 4  # up to this many values, compare all pairs; above, compare each with the best
MOST_TICKS = 8
OWN = "varies by member"  # shown for settings that differ
ACCURACY = {"accuracy": True}  # metrics and whether higher is better, if the start record is missing
ENDED = {
    None: "all epochs",
    "diverged": "diverged",
    "patience": "no improvement",
    "halving": "halving",
    "target": "target reached",
    "interrupted": "interrupted",
}


def is_sweep(directory: RunDirectory) -> bool:
    return isinstance(directory.read_config().get("variants"), list)


def open_report(directory: RunDirectory) -> Report:
    return SweepReport.read(directory) if is_sweep(directory) else Report.read(directory)


def write_sweep_report(directory: RunDirectory) -> Path:
    return write_page(directory.report_path, "sweep.html", run=SweepReport.read(directory))


@dataclass(frozen=True)
class SweepReport(Report):
    """Contents of the page."""

    sweep: Sweep
    end: Record

    @classmethod
    def read(cls, directory: RunDirectory) -> "SweepReport":
        config = dict(directory.read_config())
        variants = config.pop("variants")
        if not variants or not all(isinstance(each, Mapping) and "name" in each for each in variants):
            raise RunDirectoryError(f"{directory.config_path} is damaged: its variants are not mappings with a name")
        records = read_records(directory.metrics_path) if directory.metrics_path.is_file() else []
        start: Record = next((record for record in records if record["kind"] == "start"), {})
        last = {record["kind"]: record for record in records}
        end, how = last.get("end", {}), last.get("members", {})
        members = [_member(number, dict(each), directory.path) for number, each in enumerate(variants)]
        ways = start.get("metrics", ACCURACY)
        metrics: list[Any] = [SimpleNamespace(name=name, higher_is_better=way) for name, way in ways.items()]
        sweep = Sweep(
            members,
            directory.path,
            float(end.get("seconds") or max((m.history[-1]["time_s"] for m in members if m.history), default=0)),
            str(how.get("engine") or ""),
            int(how.get("at_once") or 0),
            float(end.get("samples_per_s") or math.nan),
            metrics=metrics,
        )
        differing = [*sweep.varying, *["seed"] * (len({member.variant.seed for member in members}) > 1)]
        own = {key for name in differing for key in (name, f"optimizer.{name}")}
        settings = {key: OWN if {key, key.partition(".")[0]} & own else text for key, text in flat(config)}
        return cls(directory.path.resolve().name, settings, list(records), sweep, end)

    @property
    def state(self) -> str:
        is_over = [bool(member.history) or member.stopped is not None for member in self.sweep]
        if any(member.stopped == "interrupted" for member in self.sweep) or (self.end and not all(is_over)):
            return "interrupted"
        return "finished" if self.end else "not finished"

    @property
    def summary(self) -> dict[str, str]:
        sweep, name = self.sweep, self.sweep.metric
        told, of = super().summary, f"/{self.start['epochs']}" if self.start.get("epochs") else ""
        own = {"learners": f"{len(sweep.members)} members", "engine": sweep.engine}
        own |= {
            "epochs": f"{round(max(member.epochs for member in sweep), 2):g}{of}",
            "time": duration_text(sweep.seconds),
        }
        known = is_number(value := sweep.best.value(name))
        return {**told, **own, "result": f"best {_words(name)} {metric_text(name, value)}" if known else ""}

    @property
    def headline(self) -> list[str]:
        model, sweep = self.start.get("model", ""), self.sweep
        if is_number(self.start.get("parameters")):
            model += f", {count_text(self.start['parameters'])} parameters"
        engine = " on ".join(str(text) for text in (sweep.engine, self.start.get("device")) if text)
        return [text for text in (self._began, f"{len(sweep.members)} members", self._beside, model, engine) if text]

    @property
    def tiles(self) -> list[ResultTile]:
        sweep, name = self.sweep, self.sweep.metric
        best = sweep.best
        tiles = [ResultTile(metric_text(name, best.value(name)), f"best {_words(name)}", best.name)]
        own = {id(m): {k: repr(v) for k, v in m.variant.values.items() if k not in CHANCE} for m in sweep}
        # Members equal to the best except for seed or fold, and not ended early by halving.
        like_best = [m.value(name) for m in sweep if own[id(m)] == own[id(best)] and m.stopped not in BEATEN]
        alike = [value for value in like_best if is_number(value)]
        if len(alike) > 1:
            spread = f"± {gap_text(name, statistics.stdev(alike)).lstrip('+')} over {len(alike)} with equal settings"
            tiles.append(ResultTile(metric_text(name, statistics.fmean(alike)), f"mean {_words(name)}", spread))
        ended = [f"{sum(m.stopped == why for m in sweep)} {text}" for why, text in ENDED.items() if why is not None]
        rate = rate_text(sweep.throughput).removesuffix(" samples/s")
        note = ", ".join(text for text in ended if not text.startswith("0 "))
        return [
            *tiles,
            ResultTile(duration_text(sweep.seconds), "wall time", self._beside),
            ResultTile(rate, "samples per second", "all members together"),
            ResultTile(count_text(len(sweep.members)), "members", note),
        ]

    @property
    def charts(self) -> list[Chart]:
        name = self.sweep.metric
        has_loss = any("loss" in member.metrics for member in self.sweep)
        drawn = [] if name == "loss" else [self._curves(name, name)]
        if has_loss:
            drawn.append(self._curves("loss", "validation loss"))
        drawn.append(self._curves("train_loss", "training loss"))
        drawn += [self._by_setting(setting) for setting in self.sweep.varying if setting != FOLD]
        return [chart for chart in drawn if chart.points]

    @property
    def decisions(self) -> dict[str, str]:
        ran = {"engine": self.sweep.engine, "side by side": str(self.sweep.at_once)} if self.sweep.at_once else {}
        hidden = ("metrics", *ran)
        return {**{name: text for name, text in super().decisions.items() if name not in hidden}, **ran}

    @property
    def members(self) -> tuple[list[str], list[tuple[bool, str, str, list[str]]]]:
        """Column names, and for each member: whether it is the best, name, folder, cells."""
        sweep = self.sweep
        settings = [name for name in sweep.varying if not all(f"{name}=" in member.name for member in sweep)]
        names = list(dict.fromkeys(name for member in sweep for name in member.metrics))
        names.sort(key=lambda name: name == "loss")
        values_of = ["validation loss" if name == "loss" else _words(name) for name in names]
        head = [*settings, "epochs", *values_of, "training loss", "ended by"]
        rows = []
        for place, member in enumerate(sweep.ranked()):
            ended = ENDED.get(member.stopped, str(member.stopped))
            if member.stopped is None and not self.end:
                ended = "under way" if member.history else "waiting"
            values = member.variant.values
            last = member.history[-1] if member.history else {}
            cells = [value_text(values.get(name)) for name in settings]
            cells += [f"{member.epochs:g}", *(metric_text(name, last.get(name)) for name in names)]
            cells += [metric_text("loss", last.get("train_loss")), ended]
            rows.append((place == 0, member.name, f"{os.path.relpath(member.run_dir, sweep.run_dir)}/", cells))
        return head, rows

    @property
    def comparisons(self) -> list[tuple[str, list[list[str]]]]:
        made = []
        for setting in (each for each in self.sweep.varying if each != FOLD):
            with contextlib.suppress(SettingError):
                made.append((setting, self._compared(setting)))
        return [(setting, rows) for setting, rows in made if rows]

    @property
    def has_beaten(self) -> bool:
        return any(member.stopped in BEATEN for member in self.sweep)

    @property
    def unpaired(self) -> list[str]:
        """Varying settings that cannot be compared, as no two members differ in them alone."""
        compared = [setting for setting, _ in self.comparisons]
        return [setting for setting in self.sweep.varying if setting not in (*compared, FOLD)]

    @property
    def _beside(self) -> str:
        return f"{self.sweep.at_once} side by side" if self.sweep.at_once else ""

    def _compared(self, setting: str) -> list[list[str]]:
        name, sweep = self.sweep.metric, self.sweep
        differences = list(sweep.compare(setting))
        best = sweep.best.variant.values.get(setting)
        if len({repr(member.variant.values.get(setting)) for member in sweep}) > FEW:
            differences = [each for each in differences if best in (each.low, each.high)]
        rows = []
        for each in differences:
            low, high = each.interval
            shown = interval_text(name, low, high) if each.pairs > 1 else "one pair: no interval"
            clear = "significant" if each.is_clear else "not significant"
            what = f"{value_text(each.high)} instead of {value_text(each.low)}"
            rows.append([what, gap_text(name, each.mean), shown, str(each.pairs), clear if each.pairs > 1 else ""])
        return rows

    @cached_property
    def _colors(self) -> tuple[str | None, dict[str, str]]:
        """The setting that determines the colour of members, and the colours by value."""
        for setting in self.sweep.varying:
            values = dict.fromkeys(repr(member.variant.values.get(setting)) for member in self.sweep)
            if setting not in CHANCE and len(values) <= len(PALETTE):
                return setting, dict(zip(values, PALETTE, strict=False))
        return None, {}

    def _curves(self, name: str, label: str) -> Chart:
        setting, colors = self._colors
        best, lines = self.sweep.best, []
        for member in self.sweep:
            points = [
                (r["epoch"], r[name]) for r in member.history if is_number(r.get("epoch")) and is_number(r.get(name))
            ]
            value = member.variant.values.get(setting) if setting else None
            group = f"{setting}={value_text(value)}" if setting else "members"
            color = colors.get(repr(value), GREY)
            if member is best:
                lines.append(Series(f"best: {member.name}", points, BLUE))
            else:
                lines.append(Series(group, points, color, faint=True))
        lines.sort(key=lambda line: not line.faint)
        return Chart(f"{titled(label)} over epochs", lines, EPOCHS, ChartAxis(percent=is_share(name)))

    def _by_setting(self, setting: str) -> Chart:
        """Chart final values over a setting, lines for members otherwise equal; after as many epochs, if some ended."""
        name, sweep = self.sweep.metric, [m for m in self.sweep if m.history and m.stopped != "diverged"]
        epochs = min((m.epochs for m in sweep if m.stopped in BEATEN), default=math.inf)
        by: dict[str, list[tuple[float, float]]] = {}
        for member in sweep:
            values = dict(member.variant.values)
            own, value = values.pop(setting, None), member.value(name, epochs)
            if is_number(own) and is_number(value):
                by.setdefault(repr(sorted(values.items(), key=str)), []).append((own, value))
        lines = [sorted(line) for line in by.values()]
        where = sorted({x for line in lines for x, _ in line})
        if len(where) < 3:
            return Chart("", [], EPOCHS)
        means = [(x, statistics.fmean(y for line in lines for at, y in line if at == x)) for x in where]
        series = [Series("members", line, GREY, faint=True) for line in lines] if len(lines) > 1 else []
        is_log = where[0] > 0 and where[-1] / where[0] >= 8
        ticks = where if len(where) <= MOST_TICKS else where[:: math.ceil(len(where) / MOST_TICKS)]
        after = f" after {epochs:g} epoch{'s' * (epochs != 1)}" if self.has_beaten else ""
        return Chart(
            f"{titled(name)} by {setting}{after}",
            [*series, Series("mean" if len(lines) > 1 else name, means)],
            ChartAxis(setting, log_ticks=ticks if is_log else ()),
            ChartAxis(percent=is_share(name)),
        )


def _member(number: int, values: dict[str, Any], path: Path) -> Member:
    name, seed = str(values.pop("name")), values.pop("seed", 0)
    folder = RunDirectory(Path(values.pop(FOLDER, None) or path / MEMBERS / folder_of(number, name)))
    member = Member(number, Variant(seed=seed, settings=values, name=name), folder.path)
    records: Sequence[Mapping[str, Any]] = read_records(folder.metrics_path) if folder.metrics_path.is_file() else []
    member.history = [dict(record) for record in records if record["kind"] == "epoch"]
    member.stopped = next((record.get("stopped") for record in records if record["kind"] == "end"), None)
    return member


def _words(name: str) -> str:
    return name.replace("_", " ")
