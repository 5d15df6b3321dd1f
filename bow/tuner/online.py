"""Online tuning: adjust the number of learners of each device while it trains, one at a time."""

import math
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

from bow.tuner.record import (
    NUM_STANDARD_ERRORS,
    Efficiency,
    LogEstimate,
    estimate,
    full_efficiency,
    log_efficiency,
    noise_from,
    steps_of,
)

Step: TypeAlias = Literal[-1, 1]  # one learner more or one fewer

UP: Step = 1
DOWN: Step = -1


@dataclass(frozen=True)
class MeasurementWindow:
    """Samples of a device in a stretch of training time, such as a second."""

    samples: float  # processed by its learners
    seconds: float  # training time, without evaluation and checkpoints
    learners: int  # constant throughout


@dataclass(frozen=True)
class TunerDecision:
    """A decision on the number of learners."""

    step: Literal[-1, 0, 1] = 0  # 1 adds a learner, -1 removes one, 0 leaves them as they are
    why: str = ""  # for logs; empty if nothing changes


@dataclass(frozen=True)
class LearnerChange:
    """A decision that changed the number of learners."""

    window: int  # windows processed by then
    learners: int  # new number
    why: str


NO_CHANGE = TunerDecision()  # nothing changes


FIRST_BACK_OFF = 64  # windows until a failed attempt is repeated; doubles with each further failure
LONGEST_BACK_OFF = 1024


class BackOff:
    """Exponential back-off, counted in windows."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._began = self._until = 0
        self._next = FIRST_BACK_OFF

    def begin(self, now: int) -> None:
        self._began, self._until = now, now + self._next
        self._next = min(2 * self._next, LONGEST_BACK_OFF)

    def relax(self, now: int) -> None:
        """Reset if the last back-off has been over for its own duration."""
        if now - self._until >= self._until - self._began:
            self.reset()

    def is_over(self, now: int) -> bool:
        return now >= self._until


KEPT_STEPS = 64  # differences between neighbouring windows from which noise is estimated


@dataclass
class Probe:
    """Samples per second of windows with the same number of learners."""

    learners: int
    rates: list[float] = field(default_factory=list)

    def last(self, count: int) -> "Probe":
        return Probe(self.learners, self.rates[-count:])

    def after(self, earlier: "Probe", most: int) -> "Probe":
        """Return the newest windows of an earlier probe followed by this one."""
        return Probe(self.learners, (earlier.rates + self.rates)[-most:])


class ProbeScores:
    """Scores of probes: throughput times statistical efficiency."""

    def __init__(self, efficiency: Efficiency) -> None:
        self._efficiency = efficiency
        self._steps: deque[float] = deque(maxlen=KEPT_STEPS)
        self._noise = noise_from(self._steps)
        self.best = -math.inf  # logarithm of the highest score on the machine in its current state

    def add(self, probe: Probe, rate: float) -> None:
        self._steps.extend(steps_of([*probe.rates[-1:], rate]))
        self._noise = noise_from(self._steps)
        probe.rates.append(rate)

    def score(self, probe: Probe) -> LogEstimate:
        found = estimate(probe.rates, self._noise)
        return LogEstimate(found.log + log_efficiency(self._efficiency, probe.learners), found.error)

    def gain(self, probe: Probe, over: Probe) -> LogEstimate:
        return self.score(probe).over(self.score(over))

    def most_gain(self, more: int, over: int) -> float:
        """Return the logarithm of the largest possible gain of more learners, with linear scaling."""
        gain = log_efficiency(self._efficiency, more) - log_efficiency(self._efficiency, over)
        return math.log(more / over) + gain


WARM_UP = 1  # windows ignored after a change: allocation, capture, caches

# Fewest windows of a probe of a number of learners: three slow ones among them hardly move the median
MIN_WINDOWS = 7
MAX_WINDOWS = 48  # most windows, if it is too close to call: either of two nearly equal numbers will do
HYSTERESIS = 1 / 3  # a learner is removed if that costs at most this part of the threshold
PRECISION = 1 / 4  # a gain is precise enough if its standard error is this part of the threshold
DRIFT = 0.08  # lasting relative change of throughput that triggers attempts in both directions

# Standard errors of a drift, high because testing every window allows many false alarms
DRIFT_SURENESS = 3.0

# Part of the learners that one attempt may add after the first, if the effect of one is too small to measure
REACH = 1 / 4
RECENT = 15  # windows whose median detects a drift, so that half of them have to be slow
MOST_CHANGES = 10  # no attempt begins after this many changes in `SPAN` windows; a running one is finished
SPAN = 60

_Result = TypeVar("_Result")


# Generator of a part of the rule: receives windows and yields decisions
_Rule: TypeAlias = Generator[TunerDecision, MeasurementWindow, _Result]


class OnlineTuner:
    """CROSSBOW's rule, made robust, as docs/design.md describes; it has no clock: back-offs count windows."""

    def __init__(
        self,
        learners: int,
        most: int,
        *,
        threshold: float = 0.03,
        efficiency: Efficiency | None = None,
        calibrated: bool = False,
    ) -> None:
        self.learners = learners
        self.most = max(most, learners)
        self.threshold = threshold
        self.memory_limit: int | None = None
        self.changes: list[LearnerChange] = []
        self.drifts = 0
        self.num_windows = 0
        self._scores = ProbeScores(efficiency or full_efficiency)
        self.restart()
        if calibrated:
            for back_off in self._back_offs.values():  # calibration has just measured the neighbours
                back_off.begin(now=0)

    @property
    def settled(self) -> bool:
        """Whether no attempt is running or pending, so that the number of learners is kept."""
        return self._watching and not any(self._is_pending(direction) for direction in (UP, DOWN))

    def update(self, window: MeasurementWindow) -> TunerDecision:
        if not (window.samples > 0 and window.seconds > 0):
            return NO_CHANGE
        self.num_windows += 1
        if window.learners != self.learners:
            self.learners = window.learners
            self.restart()
        return self._rule.send(window)

    def failed(self, learners: int) -> None:
        """Record that this many learners ran out of memory, at once or later, and that there is now one fewer."""
        self.memory_limit = learners if self.memory_limit is None else min(self.memory_limit, learners)
        if self.learners >= learners > 1:
            self._note(learners - 1, f"{learners} learners ran out of memory")
        self.restart()

    def restart(self) -> None:
        """Discard measurements and attempts, as after an external change; `memory_limit` stays."""
        self._back_offs: dict[Step, BackOff] = {UP: BackOff(), DOWN: BackOff()}
        self._drift_back_off = BackOff()
        self._scores.best = -math.inf
        self._watching = False
        self._rule = self._tune()
        next(self._rule)

    def _tune(self) -> _Rule[None]:
        """Run the rule for as long as there are windows; the first of them arrives at the first `yield`."""
        for _ in range(WARM_UP):
            yield NO_CHANGE
        here = yield from self._probe(MIN_WINDOWS)
        while True:
            if self._may_attempt(UP):
                here = yield from self._go_up(here)
            elif self._may_attempt(DOWN):
                here = yield from self._go_down(here)
            else:
                here = yield from self._watch(here)

    def _go_up(self, here: Probe) -> _Rule[Probe]:
        """Add learners until they pay off or cannot; return the probe of the number that is kept."""
        base = here.learners
        while True:
            yield from self._change(UP, f"whether {self.learners + 1} are better than {base}")
            there = yield from self._probe(MIN_WINDOWS, over=here, bar=self.threshold)
            gain = self._scores.gain(there, over=here)
            if gain.log > math.log1p(self.threshold):
                self._back_offs[UP].reset()
                most = self._scores.most_gain(there.learners, base) + NUM_STANDARD_ERRORS * gain.error
                if there.learners == base + 1 and gain.log <= most:  # else the gain has another cause
                    self._back_offs[DOWN].reset()
                    self._back_offs[DOWN].begin(self.num_windows)
                return there
            costs = gain.exceeds(-self.threshold) is False
            if costs or self.learners == base + self._reach or not self._is_allowed(self.learners + 1):
                break
        outcome = f"{self.learners} give {100 * (gain.value - 1):+.1f} % over {base}"
        while self.learners > base:
            yield from self._change(DOWN, outcome)
        return (yield from self._return_to(here, failed=UP))

    def _go_down(self, here: Probe) -> _Rule[Probe]:
        """Remove a learner; return the probe of the number that is kept."""
        bar = -HYSTERESIS * self.threshold
        yield from self._change(DOWN, f"whether {here.learners - 1} are as good as {here.learners}")
        there = yield from self._probe(MIN_WINDOWS, over=here, bar=bar)
        gain = self._scores.gain(there, over=here)
        gap = self._scores.score(there).log - self._scores.best
        if gain.log + gain.error > math.log1p(bar) and gap + gain.error > -math.log1p(self.threshold):
            self._back_offs[DOWN].reset()
            self._back_offs[UP].begin(self.num_windows)
            return there
        yield from self._change(UP, f"{there.learners} give {100 * (gain.value - 1):+.1f} % over {here.learners}")
        return (yield from self._return_to(here, failed=DOWN))

    def _return_to(self, before: Probe, failed: Step) -> _Rule[Probe]:
        """Probe the initial number again: if the machine has changed, the attempt was inconclusive."""
        self._back_offs[failed].begin(self.num_windows)
        here = yield from self._probe(MIN_WINDOWS)
        return here if self._notices_drift(here, before) else here.after(before, MAX_WINDOWS)

    def _watch(self, here: Probe) -> _Rule[Probe]:
        """Wait for a drift or for the next attempt; return a probe of the newest windows."""
        self._watching = True
        newest = Probe(here.learners)
        drifted = False
        while not drifted and not (len(newest.rates) >= RECENT and any(map(self._may_attempt, (UP, DOWN)))):
            yield from self._collect(newest)
            newest = newest.last(MAX_WINDOWS)
            if len(here.rates) < MAX_WINDOWS:
                here = newest.last(1).after(here, MAX_WINDOWS)
            drifted = len(newest.rates) >= RECENT and self._notices_drift(newest.last(RECENT), here)
        self._watching = False
        if drifted:
            return newest.last(RECENT)
        self._scores.best += self._scores.gain(newest, here).log
        return newest

    def _probe(self, fewest: int, over: Probe | None = None, bar: float = 0.0) -> _Rule[Probe]:
        """Collect windows until it is clear whether this probe exceeds `over` by a bar, within limits."""
        probe = Probe(self.learners)
        while len(probe.rates) < fewest or (over is not None and self._is_open(probe, over, bar)):
            yield from self._collect(probe)
        self._scores.best = max(self._scores.best, self._scores.score(probe).log)
        return probe

    def _is_open(self, probe: Probe, over: Probe, bar: float) -> bool:
        gain = self._scores.gain(probe, over)
        is_vague = gain.exceeds(bar) is None and gain.error > PRECISION * self.threshold
        return is_vague and len(probe.rates) < MAX_WINDOWS

    def _collect(self, probe: Probe) -> _Rule[None]:
        window = yield NO_CHANGE
        self._scores.add(probe, window.samples / window.seconds)

    def _change(self, step: Step, why: str) -> _Rule[None]:
        """Change the number of learners, and skip the warm-up windows."""
        self._note(self.learners + step, why)
        yield TunerDecision(step, why)
        for _ in range(WARM_UP - 1):
            yield NO_CHANGE

    def _notices_drift(self, newest: Probe, before: Probe) -> bool:
        """Return whether throughput has drifted; if so, reset the back-offs."""
        gap = self._scores.gain(newest, over=before)
        if abs(gap.log) <= max(math.log1p(DRIFT), DRIFT_SURENESS * gap.error):
            return False
        if not self._drift_back_off.is_over(self.num_windows):
            return False
        self._drift_back_off.relax(self.num_windows)
        self._drift_back_off.begin(self.num_windows)
        self.drifts += 1
        for back_off in self._back_offs.values():
            back_off.reset()
        self._scores.best = -math.inf
        return True

    def _may_attempt(self, direction: Step) -> bool:
        if not self._is_pending(direction):
            return False
        recent = sum(change.window > self.num_windows - SPAN for change in self.changes[-MOST_CHANGES:])
        return recent < MOST_CHANGES

    def _is_pending(self, direction: Step) -> bool:
        """Return whether an attempt is due, regardless of the limit on recent changes."""
        if not self._back_offs[direction].is_over(self.num_windows) or not self._is_allowed(self.learners + direction):
            return False
        if direction == DOWN:
            return True
        reached = range(self.learners + 1, self.learners + self._reach + 1)
        return any(self._scores.most_gain(more, self.learners) > math.log1p(self.threshold) for more in reached)

    def _is_allowed(self, learners: int) -> bool:
        return 1 <= learners <= self.most and (self.memory_limit is None or learners < self.memory_limit)

    @property
    def _reach(self) -> int:
        """Learners to add before giving up, if the effect of a single one is too small to measure."""
        return 1 + int(REACH * self.learners)

    def _note(self, learners: int, why: str) -> None:
        self.learners = learners
        self.changes.append(LearnerChange(self.num_windows, learners, why))


def balance(round_s: Sequence[Mapping[int, float]]) -> tuple[int, ...]:
    """Return the learners by device with the most samples per second, given that the slowest device sets the pace."""
    best: tuple[int, ...] = ()  # for each round time, every device has as many as finish by then
    most = -1.0
    for limit in sorted({seconds for device in round_s for seconds in device.values()}):
        within = [[count for count, seconds in device.items() if seconds <= limit] for device in round_s]
        if not all(within):
            continue
        learners = tuple(map(max, within))
        rate = sum(learners) / limit
        if rate > most:
            best, most = learners, rate
    return best


class DeviceTuners:
    """One `OnlineTuner` per device; they tune in turn, by the samples of all devices, until each has settled."""

    def __init__(self, tuners: Sequence[OnlineTuner]) -> None:
        # A device that waits for the others should add learners even if its own tasks get no faster, so that each
        # tuner gets the samples of all; as that number depends on all devices, one tunes at a time.
        self.tuners = tuple(tuners)
        self.turn = 0  # the device that is tuning
        self._others = set(range(1, len(self.tuners)))
        self._known = self._state()

    @property
    def settled(self) -> bool:
        """Whether every device has settled, given the others."""
        return not self._others and self.tuners[self.turn].settled

    def update(self, samples: float, seconds: float, learners: Sequence[int] | None = None) -> list[TunerDecision]:
        """Process a window in which devices had `learners`; None: as many as their tuners decided."""
        tuner = self.tuners[self.turn]
        count = tuner.learners if learners is None else learners[self.turn]
        decision = tuner.update(MeasurementWindow(samples, seconds, count))
        decisions = [decision if device == self.turn else NO_CHANGE for device in range(len(self.tuners))]
        if tuner.settled:
            self._pass_on()
        return decisions

    def failed(self, device: int, learners: int) -> None:
        """Record that this many learners of a device ran out of memory, and that it now has one fewer."""
        self.tuners[device].failed(learners)
        if device != self.turn:
            self.tuners[self.turn].restart()

    def _pass_on(self) -> None:
        """Pass the turn to the next device that needs one; if none does, keep it until something was tried."""
        state = self._state()
        if state[:2] != self._known[:2]:
            self._others = set(range(len(self.tuners))) - {self.turn}
        tried = state != self._known
        self._known = state
        if len(self.tuners) == 1 or (not self._others and not tried):
            return
        following = [(self.turn + ahead) % len(self.tuners) for ahead in range(1, len(self.tuners) + 1)]
        self.turn = next((device for device in following if device in self._others), following[0])
        if self.turn in self._others:  # its measurements were with other learners on the others
            self.tuners[self.turn].restart()
        self._others.discard(self.turn)
        self._known = self._state()

    def _state(self) -> tuple[int, int, int]:
        """Return learners, drifts and number of changes of the device whose turn it is."""
        tuner = self.tuners[self.turn]
        return tuner.learners, tuner.drifts, len(tuner.changes)
