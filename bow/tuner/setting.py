"""What can be tried, what is to be tried next, and what came of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bow.errors import SettingError
from bow.values import whole

ENOUGH_TO_GIVE_UP = 2
"""So many repeats are made even where there is no hope."""


@dataclass(frozen=True)
class Setting:
    """One way of running a training on a device.

    Attributes:
        engine: a name that the caller understands, such as `graph` or `graph+compiled`.
        learners: how many the device trains.
        threads: of each learning task.

    Example:
        >>> print(Setting("graph", learners=4))
        graph, 4 learners
    """

    engine: str
    learners: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        whole("learners", self.learners)
        whole("threads", self.threads)

    def __str__(self) -> str:
        words = [self.engine, count_text(self.learners)]
        return ", ".join(words + ([f"{self.threads} threads"] if self.threads > 1 else []))


@dataclass(frozen=True)
class Trial:
    """A measurement that is asked for.

    Attributes:
        setting: what is to be measured, warm.
        seconds: how long to measure in all, warm-up and whatever comes before apart; a repeat that a single round
            exceeds takes that round.
        repeats: into how many measurements the seconds are divided.
        why: for logs.
        hopeless: samples per second that leave the setting no hope; a trial whose first repeats stay below it ends.
    """

    setting: Setting
    seconds: float
    repeats: int
    why: str
    hopeless: float = 0.0

    def is_over(self, rates: Sequence[float]) -> bool:
        """Whether no further repeat is needed behind these.

        Example:
            >>> trial = Trial(Setting("eager"), seconds=1.0, repeats=5, why="an example", hopeless=100.0)
            >>> trial.is_over([90.0, 95.0]), trial.is_over([90.0, 120.0])
            (True, False)
        """
        no_hope = len(rates) == ENOUGH_TO_GIVE_UP and max(rates) < self.hopeless
        return no_hope or len(rates) >= self.repeats

    def measured_s(self, rates: Sequence[float]) -> float:
        """How long these repeats were to measure, together."""
        return self.seconds * len(rates) / self.repeats


@dataclass(frozen=True)
class Measurement:
    """What came of a trial.

    Attributes:
        setting: what was measured.
        rates: samples per second in each repeat.
        seconds: everything that the trial took, making the engine and warming it up included, compilation apart.
        compile_s: what compilation took besides.
        failure: why nothing was measured, in a few words; None where something was.
        out_of_memory: whether that is the reason: a wall for more learners, and for nothing else.
        no_room: whether it was refused before it ran, for want of room: a wall as well.

    Raises:
        SettingError: neither rates nor a failure, or numbers that cannot be.
    """

    setting: Setting
    rates: Sequence[float] = ()
    seconds: float = 0.0
    compile_s: float = 0.0
    failure: str | None = None
    out_of_memory: bool = False
    no_room: bool = False

    def __post_init__(self) -> None:
        if (self.failure is None) != bool(self.rates):
            given = "both" if self.rates else "neither"
            raise SettingError(f"a measurement has either rates or a failure, got {given} for {self.setting}")
        for rate in self.rates:
            if not (math.isfinite(rate) and rate > 0):
                raise SettingError(f"rates must be finite and above 0, got {rate} for {self.setting}; report a failure")
        for name, seconds in (("seconds", self.seconds), ("compile_s", self.compile_s)):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise SettingError(f"{name} must be finite and at least 0, got {seconds} for {self.setting}")


def count_text(learners: int) -> str:
    """So many learners, in words."""
    return "1 learner" if learners == 1 else f"{learners} learners"
