"""Windows at one number of learners after another, and how they compare."""

import math
from collections import deque
from dataclasses import dataclass, field

from bow.tuner.estimate import Estimate, estimate, noise_from, steps_of
from bow.tuner.record import Efficiency, log_efficiency

KEPT_STEPS = 64
"""Differences between neighbouring windows from which their noise is known."""


@dataclass
class Visit:
    """Samples per second of windows with the same number of learners.

    Attributes:
        learners: how many.
        rates: in order.
    """

    learners: int
    rates: list[float] = field(default_factory=list)

    def last(self, count: int) -> "Visit":
        """The newest windows of it."""
        return Visit(self.learners, self.rates[-count:])

    def after(self, earlier: "Visit", most: int) -> "Visit":
        """This one and an earlier one together, the newest windows of both."""
        return Visit(self.learners, (earlier.rates + self.rates)[-most:])


class Visits:
    """Compares visits by score, throughput times statistical efficiency.

    Args:
        efficiency: of a number of learners.
    """

    def __init__(self, efficiency: Efficiency) -> None:
        self._efficiency = efficiency
        self._steps: deque[float] = deque(maxlen=KEPT_STEPS)
        self._noise = noise_from(self._steps)
        self.best = -math.inf
        """Logarithm of the highest score, as far as it is known of the machine as it is now."""

    def add(self, visit: Visit, rate: float) -> None:
        """Add a window to a visit."""
        self._steps.extend(steps_of([*visit.rates[-1:], rate]))
        self._noise = noise_from(self._steps)
        visit.rates.append(rate)

    def remember(self, visit: Visit) -> None:
        """Take a visit into account for the best."""
        self.best = max(self.best, self.score(visit).log)

    def forget(self) -> None:
        """The machine is another one: what was the best is of no use any more."""
        self.best = -math.inf

    def shift(self, newest: Visit, before: Visit) -> None:
        """Let the best follow the machine, which two visits to the same number of learners saw at different times."""
        self.best += self.gain(newest, before).log

    def score(self, visit: Visit) -> Estimate:
        """Throughput times efficiency."""
        found = estimate(visit.rates, self._noise)
        return Estimate(found.log + self.log_efficiency(visit.learners), found.error)

    def gain(self, visit: Visit, over: Visit) -> Estimate:
        """How many times another visit's score one has."""
        return self.score(visit).over(self.score(over))

    def most_gain(self, more: int, over: int) -> float:
        """The logarithm of what more learners can bring at most, all of them bringing their full share."""
        return math.log(more / over) + self.log_efficiency(more) - self.log_efficiency(over)

    def log_efficiency(self, learners: int) -> float:
        """Logarithm of what a sample is worth."""
        return log_efficiency(self._efficiency, learners)
