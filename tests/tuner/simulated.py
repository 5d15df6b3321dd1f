"""Machines that are not there: throughput by learners, with noise, stragglers, drift, compilation and a wall."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import settings

from bow.tuner import Calibration, Candidate, EngineSetting, MeasurementWindow, OnlineTuner, Trial, TrialResult

RUNS = range(settings().max_examples)
"""Seeds: 100, and 40 by day."""
HALF = RUNS[: len(RUNS) // 2]

Curve = Callable[[int], float]
"""Throughput by learners, relative to one learner."""


def saturating(overhead: float) -> Curve:
    """Amdahl: a part of every learning task cannot overlap with others."""
    return lambda k: k / (1 + overhead * (k - 1))


def peaked(overhead: float, crosstalk: float) -> Curve:
    """Gunther's universal scalability law: learners also disturb each other."""
    return lambda k: k / (1 + overhead * (k - 1) + crosstalk * k * (k - 1))


def kneed(at: int, then: float = 0.0) -> Curve:
    """As many learners as there are cores bring their full share, further ones cost a part each."""
    return lambda k: min(k, at) * (1 - then) ** max(k - at, 0)


def stairs(cores: int) -> Curve:
    """The last learners of a round keep some cores waiting."""
    return lambda k: k / math.ceil(k / cores)


def falling(cost: float) -> Curve:
    """One learner fills the machine."""
    return lambda k: (1 - cost) ** (k - 1)


def dipping(cost: float, then: Curve) -> Curve:
    """Averaging, which begins with the second learner, costs a part."""
    return lambda k: then(k) * (1 if k == 1 else 1 - cost)


FAMILIES: dict[str, Curve] = {
    "two cores": kneed(2, 0.02),
    "four cores": kneed(4),
    "six cores, costly beyond": kneed(6, 0.03),
    "twelve cores": kneed(12, 0.01),
    "six cores in stairs": stairs(6),
    "saturating": saturating(0.1),
    "flat peak": peaked(0.05, 0.01),
    "sharp peak": peaked(0.05, 0.03),
    "one is best": falling(0.05),
    "one is best by little": falling(0.02),
    "almost linear": saturating(0.02),
}


def optima(curve: Curve, most: int, threshold: float = 0.03) -> tuple[int, int]:
    """The fewest learners that are within the threshold of the best, and the fewest that are best."""
    top = max(map(curve, range(1, most + 1)))
    fewest = next(k for k in range(1, most + 1) if curve(k) * (1 + threshold) >= top * (1 - 1e-9))
    return fewest, next(k for k in range(1, most + 1) if curve(k) >= top * (1 - 1e-9))


@dataclass
class Disturbance:
    """What keeps a measurement from the truth.

    Attributes:
        noise: standard deviation of the logarithm.
        straggling: how often something else takes half of the machine.
    """

    noise: float = 0.03
    straggling: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def of(self, rate: float) -> float:
        disturbed = rate * math.exp(self.random.gauss(0.0, self.noise))
        return disturbed / 2 if self.random.random() < self.straggling else disturbed


@dataclass
class Machine:
    """Carries out trials as a real one would; its clock is the sum of what they take.

    Attributes:
        curves: by engine.
        rate: samples per second of one learner of relative speed 1.
        setup_s: what a trial takes besides measuring.
        compile_s: by engine; `fused` compiles for every number of learners.
        wall: learners that do not fit into memory, and that nobody predicted.
        broken: engines that do not run, and from how many learners on.
    """

    curves: dict[str, Curve]
    disturbance: Disturbance = field(default_factory=Disturbance)
    rate: float = 1000.0
    setup_s: float = 0.2
    compile_s: dict[str, float] = field(default_factory=dict)
    wall: float = math.inf
    broken: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.asked: list[Trial] = []
        self.longest_s = 0.0
        self.clock_s = 0.0
        self._compiled: set[object] = set()

    def truth(self, setting: EngineSetting) -> float:
        return self.rate * self.curves[setting.engine](setting.learners)

    def best(self, most: int) -> float:
        """The throughput of the best setting."""
        counts = range(1, 1 + min(most, math.floor(min(self.wall - 1, most))))
        return max(self.rate * curve(k) for curve in self.curves.values() for k in counts)

    def calibrate(self, calibration: Calibration) -> Calibration:
        while (trial := calibration.next_trial()) is not None:
            assert calibration.next_trial() is trial
            measurement = self.carry_out(trial)
            took_s = measurement.seconds + measurement.compile_s
            self.longest_s = max(self.longest_s, took_s)
            self.clock_s += took_s
            calibration.report(measurement)
        return calibration

    def carry_out(self, trial: Trial) -> TrialResult:
        setting = trial.setting
        self.asked.append(trial)
        setup_s = self.setup_s * self.disturbance.random.uniform(0.8, 1.3)
        if setting.learners >= self.broken.get(setting.engine, math.inf):
            return TrialResult(setting, seconds=setup_s, failure="the model cannot be captured")
        if setting.learners >= self.wall:
            return TrialResult(setting, seconds=setup_s, failure="out of memory", out_of_memory=True)
        rates: list[float] = []
        while not trial.is_over(rates):
            rates.append(self.disturbance.of(self.truth(setting)))
        return TrialResult(setting, rates, setup_s + trial.measured_s(rates), self._compiling_s(setting))

    def num_compilations(self, engine: str) -> int:
        return sum(key == engine or getattr(key, "engine", None) == engine for key in self._compiled)

    def _compiling_s(self, setting: EngineSetting) -> float:
        key = setting if setting.engine == "fused" else setting.engine
        if setting.engine not in self.compile_s or key in self._compiled:
            return 0.0
        self._compiled.add(key)
        return self.compile_s[setting.engine]


@dataclass
class Training:
    """A training that an online tuner watches.

    Attributes:
        tuner: what decides.
        curve: throughput by learners; tests exchange it to let the machine drift.
        wall: learners that run out of memory as soon as they are added.
    """

    tuner: OnlineTuner
    curve: Curve
    disturbance: Disturbance = field(default_factory=Disturbance)
    wall: float = math.inf

    def __post_init__(self) -> None:
        self.learners = self.tuner.learners
        self.history: list[int] = []
        self.crossings: list[int] = []
        self.settled_with: int | None = None
        self.settled_at: int | None = None

    def run(self, windows: int) -> "Training":
        for _ in range(windows):
            rate = self.disturbance.of(1000.0 * self.curve(self.learners))
            self.history.append(self.learners)
            decision = self.tuner.update(MeasurementWindow(rate, 1.0, self.learners))
            self.learners += decision.step
            if self.learners >= self.wall:
                self.crossings.append(self.learners)
                self.tuner.failed(self.learners)
                self.learners -= 1
            assert self.learners == self.tuner.learners
            if self.tuner.settled:
                self.settled_with = self.learners
                self.settled_at = len(self.history) if self.settled_at is None else self.settled_at
        return self

    def num_changes_after(self, window: int) -> int:
        return sum(change.window > window for change in self.tuner.changes)


def lanes_of(engines: Sequence[str], most: int, **settings: float) -> list[Candidate]:
    """One candidate for each engine, with numbers of learners that double."""
    counts = tuple(2**exponent for exponent in range(most.bit_length()) if 2**exponent <= most)
    return [Candidate(engine, counts=counts, setup_s=0.2, **settings) for engine in engines]
