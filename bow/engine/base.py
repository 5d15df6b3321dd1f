"""How one round runs on one device, whatever the engine: learning tasks, step, synchronisation task, restarts."""

import abc
import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from bow.engine.task import Batch, Metrics, Step, check_precision
from bow.errors import DivergenceError, SettingError
from bow.replica import LearnerGroup
from bow.sync import DropRule, Synchroniser, Timing

HOPELESS_ROUNDS = 10
"""After this many rounds in a row in which every learner diverged, training ends with an error."""


@dataclass(frozen=True)
class Stacked:
    """Batches of all learners as one pytree whose tensors are `[learners, batch, ...]`."""

    value: Any


Batches: TypeAlias = Stacked | Sequence[Batch | None]
"""One batch per learner; None where a learner sits out."""


@dataclass(frozen=True)
class TaskSettings:
    """What the learning tasks of a training have in common.

    Args:
        step: what is done with a batch.
        precision: `"bfloat16"` for autocast, None for the model's own dtype.
        clip_norm: the largest gradient norm of a learner; None does not clip.
        on_nan: what happens to a learner whose loss or gradient is not finite.
        compile: compile the learning task with `torch.compile` where the engine has a choice.
        seed: from which all random numbers of the learning tasks derive.

    Raises:
        SettingError: a value outside its range.
    """

    step: Step
    precision: str | None = None
    clip_norm: float | None = None
    on_nan: Literal["restart", "error"] = "restart"
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise SettingError(f"clip_norm must be above 0, or None for no clipping, got {self.clip_norm}")
        if self.on_nan not in ("restart", "error"):
            raise SettingError(f'on_nan must be "restart" or "error", got {self.on_nan!r}')


@dataclass(frozen=True)
class Event:
    """Something that happened in a round and that the user should hear of."""

    round: int
    event: str
    message: str


@dataclass
class Outcome:
    """What the learning tasks of a round left besides the gradients in `G`.

    Attributes:
        losses: before the step; NaN for learners without a batch.
        finite: whether loss and gradient are finite.
        active: which learners had a batch.
        metrics: what the step returned besides the loss, one value per learner.
    """

    losses: Shaped[Tensor, " learners"]
    finite: Bool[Tensor, " learners"]
    active: list[bool]
    metrics: Metrics = field(default_factory=dict)

    @functools.cached_property
    def healthy(self) -> list[bool]:
        """Which learners had a batch and stayed finite."""
        if bool(self.finite.all()):
            return self.active
        return [active and finite for active, finite in zip(self.active, self.finite.tolist(), strict=True)]

    @property
    def diverged(self) -> list[bool]:
        """Which learners had a batch and did not stay finite."""
        return [active and not healthy for active, healthy in zip(self.active, self.healthy, strict=True)]

    @property
    def any_diverged(self) -> bool:
        """Whether any did."""
        return self.healthy is not self.active and any(self.diverged)


class Engine(abc.ABC):
    """Runs the rounds of one device.

    Args:
        group: the learners of the device.
        sync: what keeps them together.
        settings: what their learning tasks have in common.
    """

    name: ClassVar[str]

    def __init__(self, group: LearnerGroup, sync: Synchroniser, settings: TaskSettings) -> None:
        self.group = group
        self.sync = sync
        self.settings = settings
        self.round_index = 0
        self.num_restarts = 0
        self.events: list[Event] = []
        self.drop = DropRule()
        self._hopeless_rounds = 0
        sync.check(self.num_learners)
        sync.start(group.matrix)

    @property
    def num_learners(self) -> int:
        """Learners over all devices."""
        return len(self.group)

    @property
    def description(self) -> str:
        """The name of what really runs, after any fallback."""
        return self.name

    @abc.abstractmethod
    def learn(self, batches: Batches) -> Outcome:
        """Run every learning task up to its gradient, which goes to the learner's row of `G`."""

    def resized(self) -> None:  # noqa: B027 - an engine that keeps nothing per learner has nothing to do
        """Learners were added or removed."""

    @torch.no_grad()
    def round(self, batches: Batches) -> Outcome:
        """One learning task of every learner and, when it is due, the synchronisation task."""
        sync, rows, learners = self.sync, self.group.matrix, self.num_learners
        due = sync.due(self.round_index, learners)
        self.drop.observe(float(self.group.optimizer.optimizer.param_groups[0]["lr"]))
        outcome = self.learn_and_step(batches, due)
        if sync.follows(learners):
            rows.z.copy_(rows.weights[0])
        if outcome.any_diverged:
            self._restart(outcome)
        else:
            self._hopeless_rounds = 0
        if sync.restarts_on_drop and due and self.drop.take():
            self.group.restart_all()
            self._note("restart", "the learning rate dropped: every learner starts again from the central model")
        self.round_index += 1
        return outcome

    def learn_and_step(self, batches: Batches, due: bool) -> Outcome:
        """Learning tasks, optimizer and, when it is `due`, the synchronisation task, in the order of its timing."""
        sync, rows, learners = self.sync, self.group.matrix, self.num_learners
        if due:
            sync.prepare(rows)
        if due and sync.timing is Timing.WITH_STEP:
            sync.contribute(rows, learners, learners)
        outcome = self.learn(batches)
        stepping = outcome.healthy
        if outcome.any_diverged:
            self._clear_gradients(outcome)
        if due and sync.timing is Timing.BEFORE_STEP:
            contributors = sum(stepping)
            sync.contribute(rows, learners, contributors)
            sync.apply(rows, learners, contributors)
            stepping = [contributors > 0] * len(stepping)
        self._clip()
        self.group.optimizer.step(stepping)
        if due and sync.timing is Timing.AFTER_STEP:
            sync.contribute(rows, learners, learners)
        if due and sync.timing in (Timing.WITH_STEP, Timing.AFTER_STEP):
            sync.apply(rows, learners, learners)
        return outcome

    def add_learner(self) -> None:
        """Add a learner that starts from `z`; the synchroniser must be stable with it."""
        self.sync.check(self.num_learners + 1)
        self.settle()
        self._resize(self.group.add)
        if self.sync.timing is Timing.BEFORE_STEP:  # equal gradients keep learners equal only from equal states
            self.group.optimizer.copy_state(source=0, target=len(self.group) - 1)

    def remove_learner(self) -> None:
        """Remove the last learner."""
        self._resize(self.group.remove)

    def settle(self) -> None:
        """Make `z` what the training has reached, for synchronisers that do not move it as they go."""
        if self.sync.timing is Timing.NEVER:
            with torch.no_grad():
                self.sync.contribute(self.group.matrix, self.num_learners, self.num_learners)
                self.sync.apply(self.group.matrix, self.num_learners, self.num_learners)

    def _resize(self, change: Any) -> None:
        followed = self.sync.follows(self.num_learners)
        change()
        if followed:  # z moved with the only learner: averaging starts here, at rest
            self.sync.start(self.group.matrix)
            self.drop.take()
        self.resized()

    def _clip(self) -> None:
        limit = self.settings.clip_norm
        if limit is not None:
            gradients = self.group.matrix.gradients
            norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients.mul_((limit / (norms + 1e-6)).clamp(max=1.0))

    def _clear_gradients(self, outcome: Outcome) -> None:
        for learner, diverged in zip(self.group.learners, outcome.diverged, strict=True):
            if diverged:
                learner.gradient.zero_()

    def _restart(self, outcome: Outcome) -> None:
        """Start diverged learners again from `z`, or end the training where that cannot help."""
        which = outcome.diverged.index(True)
        loss = float(outcome.losses[which])
        quantity = "gradient was not finite" if math.isfinite(loss) else f"loss was {loss:g}"
        cause = f"learner {which}'s {quantity} in round {self.round_index}"
        if self.settings.on_nan == "error":
            raise DivergenceError(f'{cause}; lower the learning rate, or use on_nan="restart"')
        self._hopeless_rounds = 0 if any(outcome.healthy) else self._hopeless_rounds + 1
        if self._hopeless_rounds >= HOPELESS_ROUNDS or not bool(torch.isfinite(self.group.matrix.z).all()):
            raise DivergenceError(f"training diverged: {cause}, and so did every other; lower the learning rate")
        shared = self.sync.timing is Timing.BEFORE_STEP  # all learners have the same weights as it is
        message = f"{cause}: it {'is left out of the mean' if shared else 'starts again from the central model'}"
        if not self.num_restarts:
            warnings.warn(f"{message} (said once, then counted)", stacklevel=4)
        self.num_restarts += sum(outcome.diverged)
        self.group.restart(outcome.diverged, weights=not shared)
        self._note("learner restarted", message)

    def _note(self, event: str, message: str) -> None:
        self.events.append(Event(self.round_index, event, message))
