"""Which engine and how many learners a training begins with: one timed trial after another, within a budget."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bow.errors import SettingError
from bow.tuner.record import Efficiency, Record, full_efficiency
from bow.tuner.search import Budget, Search, choose
from bow.tuner.trial import Lane, Measurement, Setting, Trial

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


class Calibration:
    """Asks for trials, hears of measurements, and ends with a choice.

    The search:

    1. every lane that needs no compilation is measured once, with its fewest learners, those whose trials are expected
       to take least first, as far as most of the budget is left; otherwise behind 2.;
    2. from the fastest lane to the slowest, learners grow while throughput grows by more than `threshold`. A lane is
       left when learners did not pay twice in a row or cost throughput, and when diminishing returns leave it no way to
       reach the best so far;
    3. a lane that has to be compiled is tried with the best number of learners so far, or where nothing is measured yet
       with the lane's `start`, if the time that it is expected to save in the training exceeds what compiling takes:
       once per engine;
    4. between the measured numbers of learners around the best, where more may be found;
    5. the best and those that it is too close to call from are measured again, in turn, a few times at most.

    It stops when the budget is used up; no trial begins that is expected to exceed it. The best so far is always the
    choice: the fewest learners whose score is within the threshold of the highest score. One learner is as good an
    answer as any. No trial is asked for with as many learners as there was no memory for before with the same
    engine, nor with as many as it failed with in another way; an engine that never ran and fails is not tried again.

    Scores are throughput, or with `efficiency` goodput: throughput times what a sample is worth.

    Args:
        lanes: what can be tried.
        budget_s: seconds for all trials together, compilation and what was spent before included.
        samples: how many samples the training will see, if that is known: with the best throughput so far, this is how
            long the training will take.
        share: the largest part of that time; the budget shrinks to it as faster settings are found.
        threshold: what more learners have to bring, as a part of the throughput.
        efficiency: of a number of learners; None is the objective `throughput`.
        spent_s: what was spent before the first trial.

    Raises:
        SettingError: a value outside its range.

    Example:
        >>> calibration = Calibration([Lane("eager", counts=(1, 2, 4))], budget_s=30.0)
        >>> while (trial := calibration.next_trial()) is not None:
        ...     rate = 100.0 * min(trial.setting.learners, 2)
        ...     calibration.report(Measurement(trial.setting, [rate] * trial.repeats, seconds=trial.seconds))
        >>> print(calibration.choice)
        eager, 2 learners

    References:
        Koliousis et al., CROSSBOW: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers, 2019.
        Budea, TensorBow: Supporting Small-Batch Training in TensorFlow, 2019, section 2.1.4.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        budget_s: float,
        *,
        samples: float | None = None,
        share: float | None = None,
        threshold: float = 0.03,
        efficiency: Efficiency | None = None,
        spent_s: float = 0.0,
    ) -> None:
        _check(lanes, budget_s, samples, share, threshold)
        if not (math.isfinite(spent_s) and spent_s >= 0):
            raise SettingError(f"spent_s must be finite and at least 0, got {spent_s}")
        self.lanes = tuple(lanes)
        self.threshold = threshold
        self._record = Record(efficiency or full_efficiency, spent_s)
        self._budget = Budget(self._record, self.lanes, budget_s, samples, share)
        self._search = Search(self.lanes, self._record, self._budget, threshold).trials()
        self._started = False
        self._pending: Trial | None = None

    @property
    def budget_s(self) -> float:
        """Seconds that may be spent in all, as far as is known by now."""
        return self._budget.total_s

    @property
    def spent_s(self) -> float:
        """What was spent so far: before the first trial, in trials, and in compilation."""
        return self._record.spent_s

    @property
    def is_complete(self) -> bool:
        """Whether it has ended, and no trial was left out for want of time but compilation."""
        return self._started and self._pending is None and not self._budget.cut_short

    @property
    def choice(self) -> Setting | None:
        """The best so far; None where nothing ran."""
        return choose(self._record, self.threshold)

    @property
    def table(self) -> DecisionTable:
        """What was tried, what was not, and why."""
        return tabulate(self._record, self.choice)

    @property
    def summary(self) -> str:
        """The outcome and its cost in a sentence.

        Example:
            >>> Calibration([Lane("eager")], budget_s=0.0).summary
            'calibration made no trial in a budget of 0.0 s'
        """
        tried, expected, choice = len(self._record.trials), self._budget.training_s, self.choice
        if not tried:
            return f"calibration made no trial in a budget of {self.budget_s:.1f} s"
        of_training = f", {self.spent_s / expected:.1%} of a training of {expected:.0f} s" if expected else ""
        found = "nothing ran" if choice is None else f"chosen: {choice}"
        settings = "1 setting" if tried == 1 else f"{tried} settings"
        took = f"calibration of {settings} took {self.spent_s:.1f} s{of_training}"
        return f"{took} (budget {self.budget_s:.1f} s); {found}"

    def next_trial(self) -> Trial | None:
        """What to measure now, the same until it is reported; None when the calibration has ended."""
        if not self._started:
            self._started = True
            self._advance(lambda: next(self._search))
        return self._pending

    def report(self, measurement: Measurement) -> None:
        """Hear what came of the trial that `next_trial` asked for."""
        if self._pending is None or measurement.setting != self._pending.setting:
            asked = "nothing" if self._pending is None else f"{self._pending.setting}"
            raise SettingError(f"the trial that was asked for is of {asked}, got one of {measurement.setting}")
        self._budget.note(measurement, self._pending)
        self._record.add(measurement)
        self._advance(lambda: self._search.send(measurement))

    def _advance(self, step: Callable[[], Trial]) -> None:
        try:
            self._pending = step()
        except StopIteration:
            self._pending = None


def _check(
    lanes: Sequence[Lane], budget_s: float, samples: float | None, share: float | None, threshold: float
) -> None:
    if not lanes:
        raise SettingError("lanes must not be empty, got none; give the engines that can be tried")
    names = [(lane.engine, lane.threads) for lane in lanes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingError(f"lanes must differ in engine or threads, got {twice} twice; join their counts")
    if math.isnan(budget_s) or budget_s < 0:
        raise SettingError(f"budget_s must be at least 0, got {budget_s}")
    if samples is not None and not samples > 0:
        raise SettingError(f"samples must be above 0, or None where they are not known, got {samples}")
    if share is not None and not 0 < share <= 1:
        raise SettingError(f"share must be above 0 and at most 1, got {share}; 0.05 is 5% of the training")
    if not 0 < threshold < 1:
        raise SettingError(f"threshold must be above 0 and below 1, got {threshold}; 0.03 is 3%")
