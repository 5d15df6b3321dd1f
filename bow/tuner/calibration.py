"""Calibration: choose the initial engine and number of learners by timed trials, within a budget."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from bow.tuner.record import (
    Candidate,
    Efficiency,
    EngineSetting,
    Trial,
    TrialRecord,
    TrialResult,
    full_efficiency,
    log_efficiency,
)

TRIAL_SHARE = 1 / 60  # measuring time of a trial as a part of the budget, within the two limits below
SHORTEST_TRIAL_S = 0.1
LONGEST_TRIAL_S = 2.0
COMPILING_SHARE = 2 / 3  # largest part of the budget for compilation; the rest is for measuring


class TrialBudget:
    """Time budget of all trials together, including compilation."""

    def __init__(
        self,
        record: TrialRecord,
        candidates: Sequence[Candidate],
        most_s: float,
        samples: float | None,
        share: float | None,
    ) -> None:
        self._record = record
        self._most_s = most_s
        self._samples = samples
        self._share = share
        self._setup_s = {candidate.engine: candidate.setup_s for candidate in candidates}
        self._compiled: set[str | EngineSetting] = set()
        self._set_aside_s = 0.0
        self._refused: set[EngineSetting] = set()

    @property
    def total_s(self) -> float:
        """Current budget, which shrinks as faster settings are found, but not below the time spent."""
        expected = self.training_s
        if self._share is None or expected is None:
            return self._most_s
        return min(self._most_s, max(self._share * expected, self._record.spent_s))

    @property
    def cut_short(self) -> bool:
        """Whether a setting was refused for lack of time and never measured."""
        return any(setting not in self._record.trials for setting in self._refused)

    @property
    def training_s(self) -> float | None:
        """Expected duration of the training with the best throughput so far; None if unknown."""
        best = None if self._samples is None else self._record.best()
        if self._samples is None or best is None:
            return None
        return self._samples / statistics.median(self._record.rates(best))

    @property
    def trial_s(self) -> float:
        return min(max(TRIAL_SHARE * self._measuring_s, SHORTEST_TRIAL_S), LONGEST_TRIAL_S)

    def note(self, result: TrialResult, trial: Trial) -> None:
        """Update the expected cost of the engine's next trial."""
        setting = result.setting
        self._compiled |= {setting.engine, setting}
        self._refused.discard(setting)
        if result.failure is None:
            self._setup_s[setting.engine] = max(0.0, result.seconds - trial.measured_s(result.rates))

    def part_of_rest_s(self, trials: int) -> float:
        each = (self.total_s - self._record.spent_s) / trials
        most_setup_s = max(self._setup_s.values())
        return min(max(each - most_setup_s, self.trial_s), LONGEST_TRIAL_S)

    def refusal(self, candidate: Candidate, learners: int, reserve: float, seconds: float | None = None) -> str | None:
        left = self.total_s - self._record.spent_s
        longer_s = 0.0 if seconds is None else seconds - self.trial_s
        cost = self.cost_s(candidate, learners) + longer_s
        measuring_s = self._measuring_s - self.compile_s(candidate, learners)
        if cost > left - self._set_aside_s - reserve * max(measuring_s, 0.0):
            self._refused.add(candidate.at(learners))
            return f"expected to take {cost:.1f} s, more than the budget leaves"
        return None

    def cost_s(self, candidate: Candidate, learners: int) -> float:
        return self.trial_s + self._setup_s[candidate.engine] + self.compile_s(candidate, learners)

    def most_s(self, candidate: Candidate, seconds: float) -> float:
        """Return the upper limit of a trial's time, without compilation: twice the expected one."""
        return 2 * (seconds + self._setup_s[candidate.engine])

    def compile_s(self, candidate: Candidate, learners: int) -> float:
        was_compiled = (candidate.at(learners) if candidate.compiles_each else candidate.engine) in self._compiled
        return 0.0 if was_compiled else candidate.compile_s

    def saved_s(self, candidate: Candidate) -> float:
        """Return the training time that a candidate is expected to save; infinite if the length is unknown."""
        return math.inf if self.training_s is None else self.training_s * (1 - 1 / candidate.expected_gain)

    def not_worth_compiling(self, candidate: Candidate, learners: int) -> str | None:
        compiling, saved = self.compile_s(candidate, learners), self.saved_s(candidate)
        if not compiling:
            return None
        if candidate.engine in self._compiled:
            return f"{candidate.engine} was compiled once, and compiles for every number of learners"
        most_s = COMPILING_SHARE * (self.total_s - self._record.before_s)
        if compiling > most_s - self._set_aside_s - self._record.compile_s:
            return f"compiling takes {compiling:.1f} s, more than the budget leaves for it"
        cost = self.cost_s(candidate, learners)
        return None if saved > cost else f"compiling takes {cost:.1f} s to save {max(saved, 0.0):.1f} s"

    def plan(self, seconds: Sequence[float]) -> None:
        """Reserve time for compilation, replacing the previous reservation."""
        self._set_aside_s = sum(seconds)

    @property
    def _measuring_s(self) -> float:
        """Part of the budget for measuring, used or not: without compilation and what precedes the first trial."""
        return max(0.0, self.total_s - self._record.before_s - self._set_aside_s - self._record.compile_s)


REPEATS = 5  # repeats of a trial: their median tolerates two disturbed ones
RESERVE = 0.2  # part of the budget reserved for the last comparison of the best two

# Part reserved for climbing when candidates are first measured: usually learners gain more than another engine
CLIMBING = 0.6

# A trial ends after its first repeats if the score stays below this part of the best
HOPELESS = 1 / 4
FINEST = 1 / 8  # smallest relative difference of numbers of learners to refine
REMATCHES = 6  # most repetitions of the final comparison
MOST_RIVALS = 3  # most settings compared with the best in it

# A candidate is left after this many numbers of learners in a row that did not pay. One is not enough: averaging
# starts with the second learner, and a number that does not divide the work evenly can be slower than the next
PATIENCE = 2

_Result = TypeVar("_Result")
# Generator of a part of the search: yields trials and receives their results
_Search: TypeAlias = Generator[Trial, TrialResult, _Result]


class Search:
    """The search of `Calibration`, which docs/design.md describes."""

    def __init__(
        self, candidates: Sequence[Candidate], record: TrialRecord, budget: TrialBudget, threshold: float
    ) -> None:
        self._candidates = candidates
        self._record = record
        self._budget = budget
        self._threshold = threshold
        self._to_compile: list[Candidate] = []

    def trials(self) -> _Search[None]:
        direct = [candidate for candidate in self._candidates if not candidate.compile_s]
        self._to_compile = [candidate for candidate in self._candidates if candidate.compile_s]
        self._plan_compilation()
        direct.sort(key=lambda candidate: candidate.setup_s)
        for candidate in direct:
            why = "throughput with the fewest learners"
            yield from self._try(candidate, candidate.counts[0], why, CLIMBING)
        runs = [candidate for candidate in direct if self._record.counts(candidate)]
        for candidate in sorted(runs, key=self._best_of, reverse=True):
            yield from self._climb(candidate, candidate.counts[0])
        for candidate in direct:  # those refused before for lack of time
            fewest = candidate.counts[0]
            if candidate not in runs and (
                yield from self._try(candidate, fewest, "whether another engine does better")
            ):
                yield from self._climb(candidate, fewest)
        while planned := self._plan_compilation():
            self._to_compile.remove(planned[0])
            yield from self._compile(planned[0])
        yield from self._refine()
        yield from self._rematch()

    def _plan_compilation(self) -> list[Candidate]:
        """Return the candidates still to compile, those that save most time first, and reserve their time."""
        # Repeated before every trial: the budget shrinks as faster settings are found.
        planned: list[Candidate] = []
        costs: list[float] = []
        self._budget.plan(costs)
        for candidate in sorted(self._to_compile, key=lambda each: (-self._budget.saved_s(each), each.compile_s)):
            start = self._start_of(candidate)
            self._record.forget_refusals(candidate)  # those of another number of learners
            refusal = self._budget.not_worth_compiling(candidate, start)
            if refusal is not None:
                self._record.refused[candidate.at(start)] = refusal
                continue
            if all(candidate.engine != other.engine for other in planned):  # an engine is compiled once
                costs.append(self._budget.compile_s(candidate, start))
            planned.append(candidate)
            self._budget.plan(costs)
        return planned

    def _try(
        self, candidate: Candidate, learners: int, why: str, reserve: float = RESERVE, seconds: float | None = None
    ) -> _Search[bool]:
        """Measure a setting once more, or record why not; return whether it ran."""
        setting = candidate.at(learners)
        if self._budget.compile_s(candidate, learners):
            self._budget.plan([])  # this one may use all that is left
        else:
            self._plan_compilation()
        refusal = self._record.obstacle(setting) or self._budget.refusal(candidate, learners, reserve, seconds)
        if refusal is not None:
            if setting not in self._record.trials:
                self._record.refused[setting] = refusal
            return False
        length = self._budget.trial_s if seconds is None else seconds
        most_s = self._budget.most_s(candidate, length)
        best, rate = self._record.best(), 0.0
        if best is not None:  # with which it would be as good
            rate = math.exp(self._record.score(best).log - log_efficiency(self._record.efficiency, learners))
        result = yield Trial(setting, length, REPEATS, why, HOPELESS * rate, most_s)
        return result.failure is None

    def _candidate_of(self, setting: EngineSetting) -> Candidate:
        return next(each for each in self._candidates if each.at(setting.learners) == setting)

    def _best_of(self, candidate: Candidate) -> float:
        return max(self._record.score(candidate.at(count)).log for count in self._record.counts(candidate))

    def _climb(self, candidate: Candidate, start: int) -> _Search[None]:
        """Add learners while that pays, starting at a measured number; if it never does, remove some."""
        best, misses = start, 0
        for count in (count for count in candidate.counts if count > start):
            if not self._can_lead(candidate):
                why = "cannot reach the best, given diminishing returns"
                self._record.refused.setdefault(candidate.at(count), why)
                break
            if not (yield from self._try(candidate, count, f"whether more than {best} learners pay")):
                break
            gain = self._record.gain(candidate.at(count), over=candidate.at(best))
            costs = gain.exceeds(-self._threshold) is False
            if gain.log > math.log1p(self._threshold):
                best, misses = count, 0
            elif misses + 1 == PATIENCE or (costs and best > 1):
                break
            else:
                misses += 1
        if best == start:
            yield from self._descend(candidate, start)

    def _descend(self, candidate: Candidate, start: int) -> _Search[None]:
        best = start
        for count in (count for count in reversed(candidate.counts) if count < start):
            if not (yield from self._try(candidate, count, f"whether fewer than {best} learners do as well")):
                return
            if self._record.gain(candidate.at(count), over=candidate.at(best)).log < -math.log1p(self._threshold):
                return
            best = count

    def _can_lead(self, candidate: Candidate) -> bool:
        """Return whether more learners can bring a candidate above the best so far, given diminishing returns."""
        best = self._record.best()
        if best is None or not self._record.counts(candidate):
            return False
        score = self._record.score(best)
        return self._record.most_beyond(candidate) + 2 * score.error > score.log

    def _compile(self, candidate: Candidate) -> _Search[None]:
        start = self._start_of(candidate)
        if candidate.compiles_each:  # others would have to be compiled as well
            candidate = dataclasses.replace(candidate, counts=(start,))
        if (yield from self._try(candidate, start, "whether compiling pays")):
            yield from self._climb(candidate, start)

    def _start_of(self, candidate: Candidate) -> int:
        """Return the number of learners to compile a candidate for: the closest to the best so far."""
        best = self._record.best()
        wanted = (candidate.start or candidate.counts[0]) if best is None else best.learners
        return min(candidate.counts, key=lambda count: (abs(math.log(count / wanted)), count))

    def _refine(self) -> _Search[None]:
        """Try numbers of learners between the measured ones next to the best."""
        while (found := self._best_between()) is not None:
            candidate, count = found
            ran = yield from self._try(candidate, count, "between those that were measured")
            if not ran and self._record.obstacle(candidate.at(count)) is None:
                return  # the budget is used up; after a memory limit, fewer learners may fit

    def _best_between(self) -> tuple[Candidate, int] | None:
        """Return the most promising number next to the best, if it may gain more than the threshold."""
        best = self._record.best()
        if best is None:
            return None
        candidate = self._candidate_of(best)
        if candidate.compiles_each and candidate.compile_s:
            return None
        at = best.learners
        below = max((count for count in self._record.counts(candidate) if count < at), default=at)
        above = min(self._ends_above(candidate, at), default=at)
        apart = max(1, int(FINEST * at))
        middles = {(at + other) // 2 for other in (below, above) if abs(other - at) > apart}
        most = {middle: self._record.most_between(candidate, middle) for middle in middles}
        score = self._record.score(best)
        bar = score.log + math.log1p(self._threshold) - 2 * score.error
        promising = [middle for middle in middles if most[middle] > bar]
        return (candidate, max(promising, key=most.__getitem__)) if promising else None

    def _ends_above(self, candidate: Candidate, at: int) -> list[int]:
        """Return numbers of learners above `at` that were measured or do not fit in memory."""
        measured = [count for count in self._record.counts(candidate) if count > at]
        asked = {*candidate.counts, *(setting.learners for setting in (*self._record.refused, *self._record.trials))}
        unfit = [count for count in asked if count > at and self._record.obstacle(candidate.at(count)) is not None]
        return measured + unfit

    def _rematch(self) -> _Search[None]:
        """Remeasure in turn the settings that may be best, while their order is unclear."""
        for left in range(REMATCHES, 0, -1):
            ran = False
            rivals = self._rivals()
            seconds = self._budget.part_of_rest_s(left * max(1, len(rivals)))
            for setting in rivals:
                candidate = self._candidate_of(setting)
                ran |= yield from self._try(candidate, setting.learners, "too close to call", 0.0, seconds)
            if not ran:
                return

    def _rivals(self) -> list[EngineSetting]:
        """Return the best and those too close to it to call; empty if the order is clear."""
        best = self._record.best()
        if best is None:
            return []
        others = sorted(self._record.measured, key=lambda setting: -self._record.score(setting).log)
        open_ = [setting for setting in others if setting != best and self._is_open(best, setting)]
        return [*open_[:MOST_RIVALS], best] if open_ else []

    def _is_open(self, best: EngineSetting, other: EngineSetting) -> bool:
        """Return whether it is too close to call if another setting is within the threshold of the best."""
        gain = self._record.gain(best, over=other)
        matters = gain.log > math.log1p(self._threshold) / 2  # otherwise either of the two will do
        return matters and gain.exceeds(self._threshold) is None


def choose(record: TrialRecord, threshold: float) -> EngineSetting | None:
    """Return the setting with the fewest learners, then threads, whose score is within a threshold of the highest."""
    best = record.best()
    if best is None:
        return None
    bar = record.score(best).log - math.log1p(threshold)
    close = [setting for setting in record.measured if record.score(setting).log >= bar]
    return min(close, key=lambda setting: (setting.learners, setting.threads, -record.score(setting).log))


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
