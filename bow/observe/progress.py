"""Progress bars of a training, of a search and of measurements."""

import contextlib
import html
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from bow.files import Expendable
from bow.interruption import Interruption
from bow.observe.records import POSITION, VALIDATION, Record, is_number, metrics
from bow.observe.text import count_text, duration_text, learners_text, metric_text, rate_text
from bow.terminal import fitted_by_rank, wrapped

REMEMBERED = (*POSITION, "samples_per_s", "learners")  # fields with a special format in the bar
EVERY_S = 0.2  # seconds between two updates of the bar in a notebook
BESIDE = 24  # columns for share, bar and time left
WARNED_OF = ("not written", "not finite", "not equal", "not saved")  # events that also give a warning
SHOWN_EVENTS = 5  # events shown per name; further ones are only in the records


class ProgressBar:
    """A bar with throughput, learners, loss, accuracy and time left; plain lines if not on a terminal."""

    def __init__(self, enabled: bool = True, console: Console | None = None) -> None:
        self.enabled = enabled
        self._console = console or Console(file=cast(TextIO, Expendable(sys.stdout)))
        self._bar: Bar | NotebookBar | None = None
        self._task = TaskID(0)
        self._start: Record = {}
        self._latest: dict[str, float] = {}
        self._events: Counter[str] = Counter()

    def update(self, record: Record) -> None:
        if not self.enabled:
            return
        if record["kind"] == "start":
            self._begin(record)
        self._latest |= _latest(record)
        if self._bar is not None:
            done, _ = _position(self._start, self._latest)
            self._bar.update(self._task, completed=done, text=_state_text(self._latest, self._width - BESIDE))
        if line := self._line(record):
            self.say(line)

    def say(self, text: str) -> None:
        """Print one or more lines; on a terminal, long lines wrap between words."""
        if self.enabled:
            lines = (part for line in text.split("\n") for part in wrapped(line, self._width))
            self._console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar. Call once, also after an error in training."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def _width(self) -> int:
        return self._console.width if self._console.is_terminal else sys.maxsize

    def _begin(self, record: Record) -> None:
        self._start = record
        if self._console.is_jupyter and self._bar is None:
            self._bar = NotebookBar(_position(record, {})[1])
        if not self._console.is_terminal or self._bar is not None:
            return
        percent, text = TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.fields[text]}")
        columns = (percent, BarColumn(bar_width=24), text, TimeRemainingColumn())
        self._bar = Bar(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("training", total=_position(record, {})[1], text="")
        self._bar.start()

    def _line(self, record: Record) -> str | None:
        match record["kind"]:
            case "epoch" | "evaluation":
                return fitted_by_rank(_epoch_parts(record, self._start.get("epochs")), self._width)
            case "calibration":
                return f"engine and learners: {record['summary']}"
            case "event" if (name := record["event"]) not in WARNED_OF:
                self._events[name] += 1
                if self._events[name] <= SHOWN_EVENTS:
                    more = " (further ones are not shown here)" if self._events[name] == SHOWN_EVENTS else ""
                    return f"{record.get('message') or name}{more}"
            case "end":
                return _end_line(record)
        return None


class NotebookBar:
    """The part of rich's bar interface that `ProgressBar` uses, for notebooks, where rich needs an extension."""

    def __init__(self, total: float | None) -> None:
        from IPython.display import HTML, DisplayHandle

        self._html, self._handle, self._total, self._shown_at = HTML, DisplayHandle(), total, 0.0
        self._handle.display(HTML("<progress></progress>"))

    def update(self, task: Any, *, completed: float, text: str) -> None:
        if time.perf_counter() - self._shown_at < EVERY_S:
            return
        self._shown_at = time.perf_counter()
        where = f' value="{completed:g}" max="{self._total:g}"' if self._total else ""
        share = f"{100 * completed / self._total:3.0f} % " if self._total else ""
        self._handle.update(self._html(f"<pre>{share}<progress{where}></progress> {html.escape(text)}</pre>"))

    def stop(self) -> None:
        self._handle.update(self._html(""))


def _latest(record: Record) -> dict[str, float]:
    values = {name: record.get(name) for name in REMEMBERED}
    if record["kind"] == "rounds":
        values["loss"] = record.get("loss")
    if record["kind"] in VALIDATION:
        values |= {name: value for name, value in metrics(record).items() if name != "loss"}
    return {name: value for name, value in values.items() if is_number(value)}


def _position(start: Record, latest: Record) -> tuple[float, float | None]:
    """Return completed and total work: samples if training is counted in epochs, else rounds."""
    if start.get("steps") is None and start.get("epochs") and start.get("samples_per_epoch"):
        return latest.get("samples", 0), start["epochs"] * start["samples_per_epoch"]
    return latest.get("round", 0), start.get("steps") or start.get("rounds")


def _state_text(latest: Record, width: int) -> str:
    shown = [(0, rate_text(latest.get("samples_per_s")))]
    if "learners" in latest:
        shown.append((2, learners_text(latest["learners"])))
    others = {name: value for name, value in latest.items() if name not in REMEMBERED}
    shown += [(1, f"{name} {metric_text(name, value)}") for name, value in others.items()]
    return fitted_by_rank(shown, width)


def _epoch_parts(record: Record, epochs: float | None) -> list[tuple[int, str]]:
    """Return the texts for an epoch with ranks; the highest rank is omitted first if space is short."""
    of_all = f"/{epochs:g}" if epochs else ""
    number = f"{round(record['epoch'], 2):g}".rjust(len(of_all) - 1)
    shown = [(0, f"epoch {number}{of_all}")]
    if "train_loss" in record:
        shown.append((0, f"train loss {metric_text('loss', record['train_loss'])}"))
    for name, value in metrics(record).items():
        words = "validation loss" if name == "loss" else name
        shown.append((4 if name.startswith("train_") else 0, f"{words} {metric_text(name, value)}"))
    if is_number(record.get("samples_per_s")):
        shown.append((2, rate_text(record["samples_per_s"])))
    return [*shown, (3, learners_text(record["learners"])), (1, duration_text(record["time_s"]))]


def _end_line(record: Record) -> str:
    values = [f"{name} {metric_text(name, value)}" for name, value in metrics(record).items()]
    did = f"trained on {count_text(record['samples'])} samples in {duration_text(record['seconds'])}"
    line = f"{did} ({rate_text(record.get('samples_per_s'))} without start-up and evaluation)"
    if values:
        line += f": {', '.join(values)}"
    if is_number(record.get("time_to_target_s")):
        line += f"; target reached after {duration_text(record['time_to_target_s'])}"
    if record.get("learner_restarts"):
        line += f"; learners restarted {record['learner_restarts']} times"
    return line


@contextlib.contextmanager
def watched(budget_s: float | None, console: Console) -> Iterator[Callable[[float, int, float], bool]]:
    interruption = Interruption([signal.SIGINT])
    with _bar("searching", "{task.description}", console) as bar, interruption.watched():
        task, has_begun = bar.add_task("building the problem", total=budget_s), False

        def tell(seconds: float, proposals: int, best_ns: float) -> bool:
            nonlocal has_begun
            if not has_begun:
                bar.reset(task)  # the time that it shows
                has_begun = True
            bar.update(task, completed=seconds, description=f"best {best_ns / 1e6:.3f} ms, {proposals:,} examined")
            return interruption.signal is None

        yield tell


@contextlib.contextmanager
def measuring(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of measured tiles; yield a callback that receives the measured and the total number."""
    how_far = "{task.completed:,.0f} of {task.total:,.0f} tiles"
    with _bar("measuring", how_far, console, auto_refresh=False) as bar:  # a refresh thread would disturb them
        task = bar.add_task("", total=0)

        def tell(measured: int, tiles: int) -> None:
            bar.update(task, completed=measured, total=tiles, refresh=True)

        yield tell


def _bar(what: str, how_far: str, console: Console, auto_refresh: bool = True) -> Bar:
    return Bar(
        TextColumn(what),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn(how_far),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=auto_refresh,
    )
