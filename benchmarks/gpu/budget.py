"""Time that is shared out: a benchmark on a machine that is lent for minutes ends when it has to."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass
class Allotment:
    """Time that a part may take."""

    seconds: float  # how much, from now on
    clock: Clock = time.monotonic  # seconds that only go up
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.clock() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until it is over, not below 0."""
        return max(0.0, self.deadline - self.clock())

    def allows(self, seconds: float) -> bool:
        """Whether so much is left."""
        return self.left >= seconds

    def share(self, weight: float, of: float) -> "Allotment":
        """A part of what is left, where `of` is the weight of all that still have to come, this one included."""
        return Allotment(self.left * weight / of, self.clock)
