"""What engines on a host differ in: how the learning tasks of a round are run."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from bow.data import Indexed
from bow.engines.context import RoundContext
from bow.engines.outcome import Batches, Outcome, Turns

SeedOf: TypeAlias = Callable[[int, int], int]
"""The seed of a learner's random numbers in its next learning task, and those behind it: `seed_of(learner, turn)`."""

InParts: TypeAlias = Callable[[Batches, bool], Outcome]
"""Runs a round in parts: learning tasks, optimizer, synchronisation task."""


class TaskRunner(abc.ABC):
    """Runs the learning tasks of one device's rounds: what engines on a host differ in."""

    name: ClassVar[str]

    def __init__(self, context: RoundContext) -> None:
        self.context = context
        self.group = context.group

    @property
    def description(self) -> str:
        """The name of what really runs, after any fallback."""
        return self.name

    @property
    def compile_s(self) -> float | None:
        """Seconds that compiling the learning task may take, 0 where it was done before; None: there is no choice."""
        return None

    @abc.abstractmethod
    def learn(self, batches: Batches) -> Outcome:
        """Run every learning task up to its gradient, which goes to the learner's row of `G`."""

    def learn_and_step(self, batches: Batches, due: bool, in_parts: InParts) -> Outcome:
        """Run a round: in parts, unless the runner can step and average in one pass with the learning tasks."""
        return in_parts(batches, due)

    @property
    def has_written(self) -> bool:
        """Whether this round has changed what outlives it, before learners step by the optimizer."""
        return False

    @property
    def runs_ahead(self) -> bool:
        """Whether learners can start on their next batch while others are still at theirs; see `AheadRunner`."""
        return False

    @property
    def most_turns(self) -> int:
        """How many learning tasks each learner can take next; see `Loop.turns`."""
        return 1

    def turns(self, batches: Sequence[Indexed | None], seed_of: SeedOf) -> list[Turns | None] | None:
        """Let each learner take its batches; None: not these."""
        return None

    @property
    def state(self) -> dict[str, Any]:
        """What has come of rounds so far that decides how later ones run, as plain values, for checkpoints."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most depend on nothing but the round
        """Run on as another training's runner would have."""

    def resized(self) -> None:  # noqa: B027 - a runner that keeps nothing per learner has nothing to do
        """Learners were added or removed."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """End the runner's threads, if it has some; the next round starts them again."""


class AheadRunner(TaskRunner):
    """A runner whose learners can take batches as they come, without a barrier behind every round."""

    @property
    @abc.abstractmethod
    def runs_ahead(self) -> bool:
        """Whether learners still can: not where they keep step after a fallback."""

    @abc.abstractmethod
    def num_ahead(self, batches: Sequence[Batches]) -> int:
        """How many of these rounds can be run as one, from the first on."""

    @abc.abstractmethod
    def learn_ahead(self, batches: Sequence[Batches], due: bool) -> list[Outcome]:
        """Run the learning tasks of several rounds, each by the learner that is free first.

        Every task steps its learner with `step_alone`, except in the last round where that is `due` to synchronise:
        there each learner has its own batch, and its gradient is left in its row of `G`.
        """
