"""In which order settings are tried, and when enough is known of them."""

import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import TypeAlias, TypeVar

from bow.tuner.budget import Budget
from bow.tuner.lane import Lane
from bow.tuner.record import Record
from bow.tuner.setting import Measurement, Setting, Trial

REPEATS = 5
"""Repeats of a trial: their median stays where it is when two of them are disturbed."""

RESERVE = 0.2
"""This part of the budget is left for the last comparison of the best two."""

CLIMBING = 0.6
"""This part is left for climbing when lanes are measured for the first time: most often more learners bring more than
another engine does."""

HOPELESS = 1 / 4
"""A trial ends after its first repeats where the score stays below this part of the best: time is better spent."""

FINEST = 1 / 8
"""Numbers of learners that differ by less than this part are not told apart."""

REMATCHES = 6
MOST_RIVALS = 3
"""So often at most the best and so many others are measured again in the end."""

PATIENCE = 2
"""A lane is left when so many numbers of learners in a row did not pay. One is not enough: averaging begins with the
second learner, and a number that does not divide the work evenly can be slower than the next."""

_Result = TypeVar("_Result")
_Search: TypeAlias = Generator[Trial, Measurement, _Result]
"""A part of the search: it asks for trials, is sent what came of them, and returns what it found out."""


class Search:
    """The search of `Calibration`, whose docstring says in which order it goes.

    Args:
        lanes: what can be tried.
        record: what is known; settings that are not tried are noted there.
        budget: what may be spent.
        threshold: what more learners have to bring, as a part of the score.
    """

    def __init__(self, lanes: Sequence[Lane], record: Record, budget: Budget, threshold: float) -> None:
        self._lanes = lanes
        self._record = record
        self._budget = budget
        self._threshold = threshold
        self._to_compile: list[Lane] = []

    def trials(self) -> _Search[None]:
        """All trials, one after another; what came of one is sent before the next is asked for."""
        direct = [lane for lane in self._lanes if not lane.compile_s]
        self._to_compile = [lane for lane in self._lanes if lane.compile_s]
        self._plan_compilation()
        direct.sort(key=lambda lane: lane.setup_s)
        for lane in direct:
            yield from self._try(lane, lane.counts[0], "what the engine brings with the fewest learners", CLIMBING)
        runs = [lane for lane in direct if self._record.counts(lane)]
        for lane in sorted(runs, key=self._best_of, reverse=True):
            yield from self._climb(lane, lane.counts[0])
        for lane in direct:  # those that there was no time for before
            if lane not in runs and (yield from self._try(lane, lane.counts[0], "whether another engine does better")):
                yield from self._climb(lane, lane.counts[0])
        while planned := self._plan_compilation():
            self._to_compile.remove(planned[0])
            yield from self._compile(planned[0])
        yield from self._refine()
        yield from self._rematch()

    def _plan_compilation(self) -> list[Lane]:
        """The lanes still to compile, those that save most time first; their time is set aside.

        The budget shrinks as faster settings are found, so that this is planned anew before every trial.
        """
        planned: list[Lane] = []
        costs: list[float] = []
        self._budget.plan(costs)
        for lane in sorted(self._to_compile, key=lambda lane: (-self._budget.saved_s(lane), lane.compile_s)):
            start = self._start_of(lane)
            self._record.forget_refusals(lane)  # of another number of learners
            refusal = self._budget.not_worth_compiling(lane, start)
            if refusal is not None:
                self._record.refused[lane.at(start)] = refusal
                continue
            if all(lane.engine != other.engine for other in planned):  # an engine is compiled once
                costs.append(self._budget.compile_s(lane, start))
            planned.append(lane)
            self._budget.plan(costs)
        return planned

    def _try(
        self, lane: Lane, learners: int, why: str, reserve: float = RESERVE, seconds: float | None = None
    ) -> _Search[bool]:
        """Measure a setting once more, for so long if that is given, or note why not; whether it ran."""
        setting = lane.at(learners)
        if self._budget.compile_s(lane, learners):
            self._budget.plan([])  # what is left goes to this one; others have what it leaves
        else:
            self._plan_compilation()
        refusal = self._record.obstacle(setting) or self._budget.refusal(lane, learners, reserve, seconds)
        if refusal is not None:
            if setting not in self._record.trials:
                self._record.refused[setting] = refusal
            return False
        length = self._budget.trial_s if seconds is None else seconds
        measurement = yield Trial(setting, length, REPEATS, why, self._hopeless(learners))
        return measurement.failure is None

    def _hopeless(self, learners: int) -> float:
        """The samples per second with so many learners that make `HOPELESS` of the best score."""
        best = self._record.best()
        return 0.0 if best is None else HOPELESS * self._record.rate_for(self._record.score(best).log, learners)

    def _best_of(self, lane: Lane) -> float:
        """The logarithm of the highest score in a lane of which something was measured."""
        return max(self._record.score(lane.at(count)).log for count in self._record.counts(lane))

    def _climb(self, lane: Lane, start: int) -> _Search[None]:
        """Add learners while that pays, beginning with a number that was measured; if it never does, remove some."""
        best, misses = start, 0
        for count in (count for count in lane.counts if count > start):
            if not self._can_lead(lane):
                self._record.refused.setdefault(lane.at(count), "cannot reach the best, returns diminishing as they do")
                break
            if not (yield from self._try(lane, count, f"whether more than {best} learners pay")):
                break
            gain = self._record.gain(lane.at(count), over=lane.at(best))
            costs = gain.exceeds(-self._threshold) is False
            if gain.log > math.log1p(self._threshold):
                best, misses = count, 0
            elif misses + 1 == PATIENCE or (costs and best > 1):
                break
            else:
                misses += 1
        if best == start:
            yield from self._descend(lane, start)

    def _descend(self, lane: Lane, start: int) -> _Search[None]:
        best = start
        for count in (count for count in reversed(lane.counts) if count < start):
            if not (yield from self._try(lane, count, f"whether fewer than {best} learners do as well")):
                return
            if self._record.gain(lane.at(count), over=lane.at(best)).log < -math.log1p(self._threshold):
                return
            best = count

    def _can_lead(self, lane: Lane) -> bool:
        """Whether more learners can bring a lane above the best so far, as returns diminish."""
        best = self._record.best()
        if best is None or not self._record.counts(lane):
            return False
        score = self._record.score(best)
        return self._record.most_beyond(lane) + 2 * score.error > score.log

    def _compile(self, lane: Lane) -> _Search[None]:
        start = self._start_of(lane)
        if lane.compiles_each:  # all others would have to be compiled as well
            lane = dataclasses.replace(lane, counts=(start,))
        if (yield from self._try(lane, start, "whether compiling pays")):
            yield from self._climb(lane, start)

    def _start_of(self, lane: Lane) -> int:
        """The number of learners that a lane is first compiled for: the closest to the best so far."""
        best = self._record.best()
        wanted = (lane.start or lane.counts[0]) if best is None else best.learners
        return min(lane.counts, key=lambda count: (abs(math.log(count / wanted)), count))

    def _refine(self) -> _Search[None]:
        """Look between the numbers of learners around the best, where there may be more."""
        while (found := self._best_between()) is not None:
            lane, count = found
            ran = yield from self._try(lane, count, "between those that were measured")
            if not ran and self._record.obstacle(lane.at(count)) is None:
                return  # the budget is used up; where memory is, there may be room below

    def _best_between(self) -> tuple[Lane, int] | None:
        """The number beside the best that may bring most, if one may bring more than the threshold."""
        best = self._record.best()
        if best is None:
            return None
        lane = next(lane for lane in self._lanes if (lane.engine, lane.threads) == (best.engine, best.threads))
        if lane.compiles_each and lane.compile_s:
            return None
        at = best.learners
        below = max((count for count in self._record.counts(lane) if count < at), default=at)
        above = min(self._ends_above(lane, at), default=at)
        apart = max(1, int(FINEST * at))
        middles = {(at + other) // 2 for other in (below, above) if abs(other - at) > apart}
        most = {middle: self._record.most_between(lane, middle) for middle in middles}
        score = self._record.score(best)
        bar = score.log + math.log1p(self._threshold) - 2 * score.error
        promising = [middle for middle in middles if most[middle] > bar]
        return (lane, max(promising, key=most.__getitem__)) if promising else None

    def _ends_above(self, lane: Lane, at: int) -> list[int]:
        """Numbers of learners above one that were measured, or that there is no memory for."""
        measured = [count for count in self._record.counts(lane) if count > at]
        asked = {*lane.counts, *(setting.learners for setting in (*self._record.refused, *self._record.trials))}
        unfit = [count for count in asked if count > at and self._record.obstacle(lane.at(count)) is not None]
        return measured + unfit

    def _rematch(self) -> _Search[None]:
        """Measure again, in turn, what may be the best, while it is not clear what is and by how much."""
        for left in range(REMATCHES, 0, -1):
            ran = False
            rivals = self._rivals()
            seconds = self._budget.part_of_rest_s(left * max(1, len(rivals)))
            for setting in rivals:
                lane = next(lane for lane in self._lanes if lane.at(setting.learners) == setting)
                ran |= yield from self._try(lane, setting.learners, "too close to call", 0.0, seconds)
            if not ran:
                return

    def _rivals(self) -> list[Setting]:
        """The best, and those that it is too close to call from; nobody where everything is clear.

        It is to be known of every setting whether it is within the threshold of the best, and which is the best, unless
        that hardly matters.
        """
        best = self._record.best()
        if best is None:
            return []
        others = sorted(self._record.measured, key=lambda setting: -self._record.score(setting).log)
        open_ = [setting for setting in others if setting != best and self._is_open(best, setting)]
        return [*open_[:MOST_RIVALS], best] if open_ else []

    def _is_open(self, best: Setting, other: Setting) -> bool:
        """Whether it is too close to call if another setting is within the threshold of the best."""
        gain = self._record.gain(best, over=other)
        matters = gain.log > math.log1p(self._threshold) / 2  # otherwise either of the two will do
        return matters and gain.exceeds(self._threshold) is None


def choose(record: Record, threshold: float) -> Setting | None:
    """The fewest learners, then threads, among the settings whose score is within a threshold of the highest."""
    best = record.best()
    if best is None:
        return None
    bar = record.score(best).log - math.log1p(threshold)
    close = [setting for setting in record.measured if record.score(setting).log >= bar]
    return min(close, key=lambda setting: (setting.learners, setting.threads, -record.score(setting).log))
