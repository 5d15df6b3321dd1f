"""Which engine and how many learners a training begins with: one timed trial after another, within a budget."""

import math
from collections.abc import Callable, Sequence

from bow.errors import SettingError
from bow.tuner.budget import Budget
from bow.tuner.decision_table import DecisionTable, tabulate
from bow.tuner.lane import Lane
from bow.tuner.record import Efficiency, Record, full_efficiency
from bow.tuner.search import Search, choose
from bow.tuner.setting import Measurement, Setting, Trial


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
