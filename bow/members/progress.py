"""Progress of a sweep: a bar with the best member so far, a table of those in training, a line for each ended one."""

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from bow.data import open_stream
from bow.members.config import SweepConfig
from bow.members.member import Member, Progress
from bow.members.result import Sweep
from bow.observe import ProgressBar
from bow.observe.text import duration_text, metric_text, rate_text
from bow.terminal import fitted_by_rank

WIDTH = 80  # longest line, except with long names
EVERY_S = 0.2
MOST_ROWS, MOST_METRICS = 8, 3  # of the table of members in training


class _BarAndTable(Bar):
    below: Sequence[RenderableType] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield from self.below


class SweepProgress(ProgressBar):
    """Progress output: a bar and a table on terminals, and everywhere a line for each ended member and a final line."""

    def __init__(
        self, config: SweepConfig, members: Sequence[Member], enabled: bool = True, console: Console | None = None
    ) -> None:
        super().__init__(enabled, console)
        self._config = config
        self._members = members
        self._live: _BarAndTable | None = None
        self._ended: set[int] = set()
        self._began = self._shown_at = time.perf_counter()
        self._before: float = 0  # samples trained before this process resumed
        self._per_epoch: int | None = None
        self._batch_size: int | None = None

    def begin(self, waiting: Sequence[Progress]) -> None:
        self._ended = {each.number for each in self._members} - {each.member.number for each in waiting}
        if not self.enabled or not self._console.is_terminal:
            return
        train = self._config.train
        opened = open_stream(train.data, **train.stream_settings)
        self._per_epoch, self._batch_size = opened.samples_per_epoch, getattr(opened, "batch_size", None)
        self._before, total = self._samples(waiting)
        self._began = time.perf_counter()
        columns = TextColumn("{task.percentage:3.0f} %"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}")
        self._live = _BarAndTable(*columns, console=self._console, transient=True)
        self._live.add_task("members", total=total, completed=int(self._before), text="")
        self._live.start()

    @property
    def is_due(self) -> bool:
        return self._live is not None and time.perf_counter() - self._shown_at >= EVERY_S

    def show(self, training: Sequence[Progress], waiting: Sequence[Progress]) -> None:
        if self._live is None:
            return
        self._shown_at = now = time.perf_counter()
        samples, total = self._samples([*training, *waiting])
        rate = (samples - self._before) / max(now - self._began, 1e-9)
        bound = "at most " if self._config.stop or self._config.train.validation.target else ""
        left = "" if total is None or not rate else f"{bound}{duration_text((total - samples) / rate)} left"
        self._live.update(TaskID(0), total=total, completed=samples, text="  ".join([rate_text(rate), left]))
        counts = [f"{len(self._ended)} done", f"{len(training)} training", f"{len(waiting)} waiting"]
        line = Text("   ".join(["  ".join(counts), *self._best()]), overflow="ellipsis", no_wrap=True)
        self._live.below = (line, self._table([progress.member for progress in training])) if training else (line,)

    def _table(self, training: Sequence[Member]) -> Table:
        """Return members in training with their last epoch."""
        shown = sorted(training, key=lambda member: member.number)[:MOST_ROWS]
        known = dict.fromkeys(name for member in shown for name in member.metrics)
        metrics = sorted(known, key=lambda name: name == "loss")[:MOST_METRICS]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("training", no_wrap=True, max_width=WIDTH // 2)
        for name in ("epoch", *metrics, "train_loss"):
            table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
        for member in shown:
            values = [
                metric_text(name, member.value(name)) if member.history else "" for name in (*metrics, "train_loss")
            ]
            table.add_row(member.name, f"{member.epochs:g}", *values)
        if len(training) > MOST_ROWS:
            table.add_row(f"and {len(training) - MOST_ROWS} more")
        return table

    def ended(self, member: Member, elapsed_s: float) -> None:
        self._ended.add(member.number)
        metrics = sorted(member.metrics.items(), key=lambda item: item[0] == "loss")
        values = [f"{name} {metric_text(name, value)}" for name, value in metrics]
        loss = metric_text("loss", member.value("train_loss"))
        parts = [
            (0, f"{len(self._ended)}/{len(self._members)}"),
            (0, member.name),
            *((3 if name.startswith("loss") and len(values) > 1 else 1, name) for name in values),
            *([(4, f"train loss {loss}")] if member.history else []),
            (2, f"{member.epochs:g} epoch{'s' * (member.epochs != 1)}"),
            *([(0, member.stopped)] if member.stopped else []),
            (5, duration_text(elapsed_s)),
        ]
        self.say(fitted_by_rank(parts, WIDTH))

    def last(self, elapsed_s: float, samples_per_s: float) -> None:
        ended, count = len(self._ended), len(self._members)
        took = f"{count if ended == count else f'{ended} of {count}'} members in {duration_text(elapsed_s)}"
        rate = f" ({rate_text(samples_per_s)})" if samples_per_s > 0 else ""
        both = [*self._best(), f"{took}{rate}"]
        line = "; ".join(both)
        self.say(line if len(line) <= WIDTH else "\n".join(both))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _samples(self, under_way: Sequence[Progress]) -> tuple[float, float | None]:
        """Return samples trained so far, and the total if no member ends early except by halving; None: unknown."""
        going, halving = {progress.member.number for progress in under_way}, self._config.halving
        ended = sum(m.history[-1]["samples"] for m in self._members if m.history and m.number not in going)
        seen = ended + sum(progress.samples for progress in under_way)
        coming = [self._expected(progress.member) for progress in under_way]
        if halving is not None:
            share = halving.share(len(self._members), self._config.train.epochs)
            coming = [None if size is None else share * size for size in map(self._expected, self._members)]
            ended = 0
        is_open = None in coming or self._config.search is not None
        return seen, None if is_open else max(seen, ended + sum(size or 0 for size in coming))

    def _expected(self, member: Member) -> float | None:
        train, variant = self._config.train, member.variant
        if train.steps is not None:
            size = self._config.of(variant).batch_size or self._batch_size
            learners = train.num_learners if self._config.has_learners else 1
            return None if size is None or self._config.halving else float(train.steps * size * learners)
        per_epoch = self._per_epoch if variant.train_on is None else len(variant.train_on)
        return None if per_epoch is None else float(per_epoch * train.epochs)

    def _best(self) -> list[str]:
        begun = [member for member in self._members if member.history and member.stopped != "diverged"]
        if not begun:
            return []
        so_far = Sweep(begun, Path(), 0.0, "", 0, 0.0, metrics=self._config.train.validation.metrics)
        best, name = so_far.best, so_far.metric
        value = best.value(name)
        return [] if math.isnan(value) else [f"best {best.name}: {name.replace('_', ' ')} {metric_text(name, value)}"]
