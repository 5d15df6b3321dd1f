"""Calibration: choose the initial engine and number of learners by timed trials, within a budget."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bow.tuner.record import Efficiency, TrialRecord, full_efficiency
from bow.tuner.search import Search, TrialBudget, choose
from bow.tuner.trial import Candidate, EngineSetting, Trial, TrialResult

Status: TypeAlias = Literal["chosen", "measured", "failed", "not tried"]


@dataclass(frozen=True)
class DecisionRow:
    """A setting in the decision table."""

    engine: str
    learners: int
    threads: int  # of each learning task
    status: Status
    why: str
    samples_per_s: float | None = None  # median over the repeats; None if it did not run
    low: float | None = None  # the slowest repeat
    high: float | None = None  # the fastest repeat
    repeats: int = 0
    efficiency: float = 1.0  # statistical efficiency, 1 for the objective `throughput`
    seconds: float = 0.0  # of its trials, without compilation
    compile_s: float = 0.0  # of compilation


def _tried(record: TrialRecord, setting: EngineSetting, choice: EngineSetting | None, what: str) -> DecisionRow:
    trials, rates = record.trials[setting], record.rates(setting)
    failure = next((trial for trial in reversed(trials) if trial.failure is not None), None)
    status: Status = "chosen" if setting == choice else "measured"
    if setting not in record.measured:
        status = "failed"
        why = (failure and failure.failure) or record.obstacle(setting) or ""
    else:
        why = _compared(record, setting, choice, what)
    return DecisionRow(
        *(setting.engine, setting.learners, setting.threads, status, why),
        samples_per_s=statistics.median(rates) if rates else None,
        low=min(rates, default=None),
        high=max(rates, default=None),
        repeats=len(rates),
        efficiency=record.efficiency(setting.learners),
        seconds=sum(trial.seconds for trial in trials),
        compile_s=sum(trial.compile_s for trial in trials),
    )


def _compared(record: TrialRecord, setting: EngineSetting, choice: EngineSetting | None, what: str) -> str:
    best = record.best()
    assert best is not None
    assert choice is not None
    if setting != choice:
        return _relation(record.gain(setting, over=choice).value, f"{what} of the choice")
    if setting == best:
        return f"the highest {what}"
    return f"fewer learners or threads, {_relation(record.gain(setting, over=best).value, f'the highest {what}')}"


def _relation(ratio: float, to: str) -> str:
    return f"{100 * ratio:.1f} % of the {to.removeprefix('the ')}"


class Calibration:
    """Requests trials, processes their results, and ends with a choice; docs/design.md describes the search."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        budget_s: float,
        *,
        samples: float | None = None,
        share: float | None = None,
        threshold: float = 0.03,
        efficiency: Efficiency | None = None,
        spent_s: float = 0.0,
    ) -> None:
        self.candidates = tuple(candidates)
        self.threshold = threshold
        self._record = TrialRecord(efficiency or full_efficiency, spent_s)
        self._budget = TrialBudget(self._record, self.candidates, budget_s, samples, share)
        self._search = Search(self.candidates, self._record, self._budget, threshold).trials()
        self._started = False
        self._pending: Trial | None = None

    @property
    def budget_s(self) -> float:
        return self._budget.total_s

    @property
    def spent_s(self) -> float:
        """Seconds spent so far: before the first trial, in trials, and in compilation."""
        return self._record.spent_s

    @property
    def is_complete(self) -> bool:
        """Whether it has ended without skipping a trial for lack of time, other than compilations."""
        return self._started and self._pending is None and not self._budget.cut_short

    @property
    def choice(self) -> EngineSetting | None:
        return choose(self._record, self.threshold)

    @property
    def rows(self) -> tuple[DecisionRow, ...]:
        """The current decision table, in the order of first trials; then the settings that were not tried."""
        record, choice = self._record, self.choice
        worth = {setting: record.efficiency(setting.learners) for setting in (*record.trials, *record.refused)}
        what = "throughput" if all(value == 1 for value in worth.values()) else "goodput"
        refused = (
            DecisionRow(each.engine, each.learners, each.threads, "not tried", why, efficiency=worth[each])
            for each, why in record.refused.items()
        )
        return (*(_tried(record, setting, choice, what) for setting in record.trials), *refused)

    @property
    def summary(self) -> str:
        """The choice and its cost in one line."""
        expected = self._budget.training_s
        of_training = f", {100 * self.spent_s / expected:.1f} % of training" if expected else ""
        found = "no setting ran" if self.choice is None else f"{self.choice}"
        return f"{found}; {len(self._record.trials)} tried in {self.spent_s:.1f} s{of_training}"

    def next_trial(self) -> Trial | None:
        """Return the trial to run now, the same until it is reported; None when the calibration has ended."""
        if not self._started:
            self._started = True
            self._advance(lambda: next(self._search))
        return self._pending

    def report(self, result: TrialResult) -> None:
        assert self._pending is not None
        assert result.setting == self._pending.setting
        self._budget.note(result, self._pending)
        self._record.add(result)
        self._advance(lambda: self._search.send(result))

    def _advance(self, step: Callable[[], Trial]) -> None:
        try:
            self._pending = step()
        except StopIteration:
            self._pending = None
