"""Runners: the part in which engines on a host differ, how the learning tasks of a round are run."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from bow.data import Batches, Indexed
from bow.engines.context import RoundContext
from bow.engines.outcome import Outcome

if TYPE_CHECKING:
    from bow.engines.graph import ReadyTurns
    from bow.graph import StepGraph

# `seed_of(learner, turn)`: seed of the random numbers of a learner's next learning tasks.
SeedOf: TypeAlias = Callable[[int, int], int]

# Runs a round in parts: learning tasks, optimizer, synchronisation task.
InParts: TypeAlias = Callable[[Batches, bool], Outcome]


class TaskRunner(abc.ABC):
    """Run the learning tasks of one device's rounds: the part in which engines on a host differ."""

    name: ClassVar[str]
    gathers: ClassVar[bool] = False  # whether it can run several rounds on batches that are still to be gathered

    def __init__(self, context: RoundContext) -> None:
        self.context = context
        self.group = context.group

    @property
    def description(self) -> str:
        return self.name

    @property
    def compilable(self) -> "StepGraph | None":
        """The step graph of the learning task, known after the first round; None if it cannot be compiled."""
        return None

    @abc.abstractmethod
    def learn(self, batches: Batches) -> Outcome:
        """Run every learning task up to its gradient, which goes to the learner's row of `G`."""

    def learn_and_step(self, batches: Batches, due: bool, in_parts: InParts) -> Outcome:
        """Run a round: in parts, unless the runner can step and average in one pass with the learning tasks."""
        return in_parts(batches, due)

    @property
    def has_written(self) -> bool:
        """Whether this round has changed lasting state before the optimizer's step."""
        return False

    @property
    def runs_ahead(self) -> bool:
        return False

    def rounds(self, batches: Sequence[Indexed], due: Sequence[bool]) -> list[Outcome]:
        """Run rounds, with a barrier after each, up to one that fails, which has changed nothing, or that diverges."""
        return []

    @property
    def most_turns(self) -> int:
        """Upper limit of the rounds, or of the turns of each learner, that can run next without Python between them."""
        return 0

    def turns(self, batches: Sequence[Indexed | None], seed_of: SeedOf) -> "ReadyTurns | None":
        return None

    @property
    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most depend on nothing but the round
        """Restore `state`."""

    def resized(self) -> None:  # noqa: B027 - a runner that keeps nothing per learner has nothing to do
        """Called after learners were added or removed."""

    def check_last(self) -> None:  # noqa: B027 - most replay nothing
        """After the last round, compare what was captured with the step, and warn of a difference."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Stop the runner's threads, if it has any; the next round restarts them."""


class AheadRunner(TaskRunner):
    """A runner whose learners can take batches as they come, without a barrier after every round."""

    @property
    @abc.abstractmethod
    def runs_ahead(self) -> bool:
        """Whether learners still can; False if they keep step after a fallback."""

    @abc.abstractmethod
    def num_ahead(self, batches: Sequence[Batches]) -> int:
        """Return how many of these rounds, from the first on, can run as one."""

    @abc.abstractmethod
    def learn_ahead(self, batches: Sequence[Batches], due: bool) -> list[Outcome]:
        """Run the tasks of several rounds, each on the learner that is free first."""
        # Every task steps its learner with `step_alone`, except in the last round if that is `due` to synchronise:
        # there each learner has its own batch and leaves its gradient in its row of `G`.
