"""What an online tuner hears and says."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Step: TypeAlias = Literal[-1, 1]
"""One learner more or one fewer."""

UP: Step = 1
DOWN: Step = -1


@dataclass(frozen=True)
class Window:
    """What a device did in a stretch of training time, such as a second.

    Attributes:
        samples: that its learners saw.
        seconds: training time, evaluation and checkpoints left out.
        learners: how many there were, all the time.
    """

    samples: float
    seconds: float
    learners: int


@dataclass(frozen=True)
class Decision:
    """What to do now.

    Attributes:
        step: 1 adds a learner, -1 removes one, 0 leaves them as they are.
        why: for logs; empty where nothing changes.
    """

    step: Literal[-1, 0, 1] = 0
    why: str = ""


@dataclass(frozen=True)
class Change:
    """A decision that changed the number of learners.

    Attributes:
        window: how many windows had been heard.
        learners: how many there were from then on.
        why: the reason.
    """

    window: int
    learners: int
    why: str


STAY = Decision()
"""Nothing changes."""
