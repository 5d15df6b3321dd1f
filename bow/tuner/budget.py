"""What a calibration may spend, and what its trials are expected to cost."""

import math
import statistics
from collections.abc import Sequence

from bow.tuner.lane import Lane
from bow.tuner.record import Record
from bow.tuner.setting import Measurement, Setting, Trial

TRIAL_SHARE = 1 / 60
"""A trial measures for this part of the budget, within the two limits below."""

SHORTEST_TRIAL_S = 0.1
LONGEST_TRIAL_S = 2.0

COMPILING_SHARE = 2 / 3
"""Compilation may take up to this part of the budget; the rest is for measuring."""


class Budget:
    """Seconds for all trials together, compilation included.

    Args:
        record: what was measured, and what was spent before.
        lanes: what can be tried.
        most_s: the budget at the beginning.
        samples: how many samples the training will see; None where that is unknown.
        share: the largest part of the expected training time.
    """

    def __init__(
        self, record: Record, lanes: Sequence[Lane], most_s: float, samples: float | None, share: float | None
    ) -> None:
        self._record = record
        self._most_s = most_s
        self._samples = samples
        self._share = share
        self._setup_s = {lane.engine: lane.setup_s for lane in lanes}
        self._compiled: set[str | Setting] = set()
        self._set_aside_s = 0.0
        self._refused: set[Setting] = set()

    @property
    def total_s(self) -> float:
        """The budget, as far as is known by now: it falls as faster settings are found, but not below what is spent."""
        expected = self.training_s
        if self._share is None or expected is None:
            return self._most_s
        return min(self._most_s, max(self._share * expected, self._record.spent_s))

    @property
    def cut_short(self) -> bool:
        """Whether there is a setting that was refused for want of time and not measured at all."""
        return any(setting not in self._record.trials for setting in self._refused)

    @property
    def training_s(self) -> float | None:
        """How long the training would take with the best throughput so far; None where that is unknown."""
        best = None if self._samples is None else self._record.best()
        if self._samples is None or best is None:
            return None
        return self._samples / statistics.median(self._record.rates(best))

    @property
    def trial_s(self) -> float:
        """How long a trial measures."""
        return min(max(TRIAL_SHARE * self._measuring_s, SHORTEST_TRIAL_S), LONGEST_TRIAL_S)

    def note(self, measurement: Measurement, trial: Trial) -> None:
        """Learn from a trial what the next one of its engine will cost."""
        setting = measurement.setting
        self._compiled |= {setting.engine, setting}
        self._refused.discard(setting)
        if measurement.failure is None:
            self._setup_s[setting.engine] = max(0.0, measurement.seconds - trial.measured_s(measurement.rates))

    def part_of_rest_s(self, trials: int) -> float:
        """How long each of so many further trials may measure, if all that is left goes to them."""
        each = (self.total_s - self._record.spent_s) / trials
        most_setup_s = max(self._setup_s.values())
        return min(max(each - most_setup_s, self.trial_s), LONGEST_TRIAL_S)

    def refusal(self, lane: Lane, learners: int, reserve: float, seconds: float | None = None) -> str | None:
        """Why a trial must not begin, if it is expected to exceed the budget."""
        left = self.total_s - self._record.spent_s
        if not self._record.trials and left > 0:
            return None  # without one trial there would be no choice
        longer_s = 0.0 if seconds is None else seconds - self.trial_s
        cost, measuring_s = self.cost_s(lane, learners) + longer_s, self._measuring_s - self.compile_s(lane, learners)
        if cost > left - self._set_aside_s - reserve * max(measuring_s, 0.0):
            self._refused.add(lane.at(learners))
            return f"expected to take {cost:.1f} s, more than the budget leaves"
        return None

    def cost_s(self, lane: Lane, learners: int) -> float:
        """What a trial is expected to take in all."""
        return self.trial_s + self._setup_s[lane.engine] + self.compile_s(lane, learners)

    def compile_s(self, lane: Lane, learners: int) -> float:
        """What compiling for a trial is expected to take."""
        was_compiled = (lane.at(learners) if lane.compiles_each else lane.engine) in self._compiled
        return 0.0 if was_compiled else lane.compile_s

    def saved_s(self, lane: Lane) -> float:
        """What a lane is expected to save of the training; any time where the length of that is unknown."""
        return math.inf if self.training_s is None else self.training_s * (1 - 1 / lane.expected_gain)

    def not_worth_compiling(self, lane: Lane, learners: int) -> str | None:
        """Why a lane is not compiled for so many learners; None where nothing speaks against it."""
        compiling, saved = self.compile_s(lane, learners), self.saved_s(lane)
        if not compiling:
            return None
        if lane.engine in self._compiled:
            return f"{lane.engine} was compiled once, and compiles for every number of learners"
        most_s = COMPILING_SHARE * (self.total_s - self._record.before_s)
        if compiling > most_s - self._set_aside_s - self._record.compile_s:
            return f"compiling takes {compiling:.1f} s, more than the budget leaves for it"
        cost = self.cost_s(lane, learners)
        return None if saved > cost else f"compiling takes {cost:.1f} s to save {max(saved, 0.0):.1f} s"

    def plan(self, seconds: Sequence[float]) -> None:
        """Set time aside for compilation, instead of what was planned before."""
        self._set_aside_s = sum(seconds)

    @property
    def _measuring_s(self) -> float:
        """The part of the budget that compilation and what came before leave, whether it is over or not."""
        return max(0.0, self.total_s - self._record.before_s - self._set_aside_s - self._record.compile_s)
