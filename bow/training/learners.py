"""What a training asks of its learners, whatever runs them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from bow.cluster import World
from bow.engines import LearningConfig, Outcome, RoundEvent
from bow.sync import Synchroniser
from bow.training.replicas import TimelineRecorder


class Shares(Protocol):
    """How the learners of a training are spread over its devices."""

    @property
    def by_device(self) -> Sequence[int]:
        """Number of learners of each device."""

    @property
    def num_all(self) -> int:
        """Number of learners on all devices."""

    @property
    def own(self) -> range:
        """The numbers of those that get their batches here among all."""


class EngineRounds(Protocol):
    """The rounds of one device as a training sees them."""

    @property
    def settings(self) -> LearningConfig:
        """What learning tasks have in common."""

    @property
    def sync(self) -> Synchroniser:
        """What keeps the learners together."""

    @property
    def period(self) -> int:
        """How many of the next rounds `rounds_at_once` can run without a barrier."""

    @property
    def num_restarts(self) -> int:
        """How often a learner diverged and started again."""

    @property
    def is_hopeless(self) -> bool:
        """Whether no learner here stays finite."""

    def take_events(self) -> list[RoundEvent]:
        """What happened since the last call and a user should hear of."""


class Learners(Protocol):
    """Learners that take their batches round by round: `Replicas`, or the tiles of a partition."""

    device: torch.device
    """What this process computes on."""

    world: World
    """The processes of the training."""

    num_parameters: int
    """Parameters that are trained."""

    last: Outcome | None
    """Losses and metrics of the last round."""

    timeline: TimelineRecorder
    """Records what runs when."""

    @property
    def group(self) -> Shares:
        """How learners are spread over the devices."""

    @property
    def loop(self) -> EngineRounds:
        """What runs the rounds."""

    @property
    def learners(self) -> int:
        """Number of learners, as records have it."""

    @property
    def engine(self) -> str:
        """What runs them."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Learning-rate schedulers are built on it."""

    @property
    def rounds(self) -> int:
        """Completed rounds."""

    @property
    def central(self) -> nn.Module:
        """The central model, in evaluation mode."""

    def rounds_at_once(self, batches: Sequence[Any]) -> list[Outcome]:
        """Run several rounds."""

    def settle(self) -> None:
        """Make the central model what the training has reached; all devices do this behind the same round."""

    def export(self) -> nn.Module:
        """The central model as a plain module of its own, in evaluation mode, on the CPU."""

    def training_state(self) -> dict[str, Any] | None:
        """Everything that is needed to go on exactly; rank 0 has it, and the others None."""

    def load_training_state(self, state: Mapping[str, Any] | None, learners: int | None = None) -> None:
        """Continue from `training_state()`."""

    def close(self) -> None:
        """Let go of what runs them."""
