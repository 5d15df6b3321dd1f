"""What a training asks of its learners, whatever runs them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from bow.cluster import World
from bow.engines import Outcome, RoundEvent, Step
from bow.engines.task_scheduler import Dispatch
from bow.schedule import Timeline
from bow.sync import Synchroniser


class Learners(Protocol):
    """Learners that take their batches round by round: `Replicas`, or the tiles of a placed strategy."""

    @property
    def device(self) -> torch.device:
        """What this process computes on."""

    @property
    def world(self) -> World:
        """The processes of the training."""

    @property
    def learners(self) -> int:
        """Number of learners, as records have it."""

    @property
    def learners_in_all(self) -> int:
        """Number of learners on all devices."""

    @property
    def by_device(self) -> Sequence[int]:
        """Number of learners of each device."""

    @property
    def own(self) -> range:
        """The numbers of those that get their batches here among all."""

    @property
    def engine(self) -> str:
        """What runs them."""

    @property
    def sync(self) -> Synchroniser:
        """What keeps them together."""

    @property
    def step(self) -> Step:
        """What a learning task does with a batch."""

    @property
    def precision(self) -> str | None:
        """`"bfloat16"` for autocast, or None."""

    @property
    def dispatch(self) -> Dispatch:
        """How batches are dealt."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Learning-rate schedulers are built on it."""

    @property
    def num_parameters(self) -> int:
        """Parameters that are trained."""

    @property
    def num_restarts(self) -> int:
        """How often a learner diverged and started again."""

    @property
    def is_hopeless(self) -> bool:
        """Whether no learner here stays finite."""

    @property
    def rounds(self) -> int:
        """Completed rounds."""

    @property
    def period(self) -> int:
        """How many of the next rounds `rounds_at_once` can run without a barrier."""

    @property
    def central(self) -> nn.Module:
        """The central model, in evaluation mode."""

    def rounds_at_once(self, batches: Sequence[Any]) -> list[Outcome]:
        """Run several rounds."""

    def remember(self, outcome: Outcome) -> None:
        """Make this what `last` is."""

    def start_timeline(self) -> None:
        """Record from now on what runs when."""

    def take_timeline(self) -> Timeline:
        """What has run since `start_timeline`; nothing is recorded any more."""

    def memory_report(self) -> str | None:
        """What the training holds on a device of its own."""

    def settle(self) -> None:
        """Make the central model what the training has reached; all devices do this behind the same round."""

    def take_events(self) -> list[RoundEvent]:
        """What happened since the last call and a user should hear of."""

    def export(self) -> nn.Module:
        """The central model as a plain module of its own, in evaluation mode, on the CPU."""

    def training_state(self) -> dict[str, Any] | None:
        """Everything that is needed to go on exactly; rank 0 has it, and the others None."""

    def load_training_state(self, state: Mapping[str, Any] | None, learners: int | None = None) -> None:
        """Continue from `training_state()`."""

    def close(self) -> None:
        """Let go of what runs them."""
