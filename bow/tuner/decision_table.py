"""What was tried, measured and chosen, and why: for the terminal, the run directory and the report."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bow.tuner.record import Record
from bow.tuner.setting import Setting

Status: TypeAlias = Literal["chosen", "measured", "failed", "not tried"]


@dataclass(frozen=True)
class Row:
    """One setting.

    Attributes:
        engine: its name.
        learners: how many.
        threads: of each learning task.
        status: what became of it.
        why: the reason for that.
        samples_per_s: median over the repeats; None where it did not run.
        low: the slowest repeat.
        high: the fastest repeat.
        repeats: how many there were.
        efficiency: what a sample is worth with so many learners, 1 for the objective `throughput`.
        seconds: what its trials took, compilation apart.
        compile_s: what compilation took.
    """

    engine: str
    learners: int
    threads: int
    status: Status
    why: str
    samples_per_s: float | None = None
    low: float | None = None
    high: float | None = None
    repeats: int = 0
    efficiency: float = 1.0
    seconds: float = 0.0
    compile_s: float = 0.0


COLUMNS = ("engine", "learners", "threads", "samples/s", "low-high", "n", "seconds", "compiling", "decision")
_LEFT = ("engine", "decision")


@dataclass(frozen=True)
class DecisionTable:
    """Rows, in the order of their first trials; behind them what was not tried.

    Example:
        >>> row = Row("eager", 1, 1, "chosen", "the highest throughput", 812.6, 801.0, 820.0, 5, seconds=0.62)
        >>> print(DecisionTable((row,)))
        engine  learners  threads  samples/s  low-high  n  seconds  compiling  decision
        eager          1        1        813   801-820  5      0.6             chosen: the highest throughput
    """

    rows: Sequence[Row]

    @property
    def chosen(self) -> Row | None:
        """The row of the choice; None where nothing ran."""
        return next((row for row in self.rows if row.status == "chosen"), None)

    def as_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [dataclasses.asdict(row) for row in self.rows]

    def __str__(self) -> str:
        cells = [COLUMNS, *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(_line(each, widths) for each in cells)


def tabulate(record: Record, choice: Setting | None) -> DecisionTable:
    """The table of what is known by now."""
    is_throughput = all(record.efficiency(setting.learners) == 1 for setting in (*record.trials, *record.refused))
    what = "throughput" if is_throughput else "goodput"
    tried = [_tried(record, setting, choice, what) for setting in record.trials]
    return DecisionTable((*tried, *(_refused(record, setting, why) for setting, why in record.refused.items())))


def _tried(record: Record, setting: Setting, choice: Setting | None, what: str) -> Row:
    trials, rates = record.trials[setting], record.rates(setting)
    failure = next((trial for trial in reversed(trials) if trial.failure is not None), None)
    status: Status = "chosen" if setting == choice else "measured"
    if setting not in record.measured:
        status = "failed"
        why = (failure and failure.failure) or record.obstacle(setting) or ""
    else:
        why = _compared(record, setting, choice, what)
    return Row(
        *(setting.engine, setting.learners, setting.threads, status, why),
        samples_per_s=statistics.median(rates) if rates else None,
        low=min(rates, default=None),
        high=max(rates, default=None),
        repeats=len(rates),
        efficiency=record.efficiency(setting.learners),
        seconds=sum(trial.seconds for trial in trials),
        compile_s=sum(trial.compile_s for trial in trials),
    )


def _compared(record: Record, setting: Setting, choice: Setting | None, what: str) -> str:
    best = record.best()
    assert best is not None
    assert choice is not None
    if setting != choice:
        return _relation(record.gain(setting, over=choice).value, f"{what} of the choice")
    if setting == best:
        return f"the highest {what}"
    return f"fewer learners or threads, {_relation(record.gain(setting, over=best).value, f'the highest {what}')}"


def _relation(ratio: float, to: str) -> str:
    return f"{100 * ratio:.1f}% of the {to.removeprefix('the ')}"


def _refused(record: Record, setting: Setting, why: str) -> Row:
    efficiency = record.efficiency(setting.learners)
    return Row(setting.engine, setting.learners, setting.threads, "not tried", why, efficiency=efficiency)


def _cells(row: Row) -> tuple[str, ...]:
    has_rates = row.samples_per_s is not None
    return (
        row.engine,
        str(row.learners),
        str(row.threads),
        _short(row.samples_per_s),
        f"{_short(row.low)}-{_short(row.high)}" if has_rates else "",
        str(row.repeats) if has_rates else "",
        f"{row.seconds:.1f}" if row.status != "not tried" else "",
        f"{row.compile_s:.1f}" if row.compile_s else "",
        f"{row.status}: {row.why}" if row.status != "measured" else row.why,
    )


def _short(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.ljust(width) if column in _LEFT else cell.rjust(width)
        for column, cell, width in zip(COLUMNS, cells, widths, strict=True)
    ]
    return "  ".join(aligned).rstrip()
