"""What a training's learners are made of, apart from what is found by measurement: engine, number, compilation."""

import functools
from dataclasses import dataclass

import torch
from torch import nn

from bow.cluster import ALONE, TrialWorld, World
from bow.devices import StreamDevice
from bow.engines import Batch, EngineName, OnNan, Step
from bow.engines.memory import is_cpu
from bow.engines.room import Room
from bow.engines.swap import Memory
from bow.errors import SettingError
from bow.replicas import BufferPolicy, OptimizerFactory
from bow.schedule import Schedule
from bow.schedule.scheduler import Dispatch
from bow.sync import Synchroniser
from bow.training.replicas import Replicas


@dataclass(frozen=True)
class Blueprint:
    """Arguments of `Replicas`, from which several of them can be made.

    Attributes:
        model: the template.
        step: what a learning task does.
        optimizer: makes the optimizer.
        sync: what keeps the learners together.
        device: where they are.
        dispatch: as in `Replicas`.
        precision: as in `Replicas`.
        clip_norm: as in `Replicas`.
        memory: as in `Replicas`.
        on_nan: as in `Replicas`.
        buffers: as in `Replicas`.
        seed: as in `Replicas`.
        example: a batch of one learner, where memory is to be predicted from it; None where there is a `step`.
        schedule: which executors run the operators of a learning task; None: one.
        is_several: whether there are other devices, so that trials go the way that the training will go.
    """

    model: nn.Module
    step: Step
    optimizer: OptimizerFactory
    sync: Synchroniser
    device: torch.device | StreamDevice
    dispatch: Dispatch
    precision: str | None
    clip_norm: float | None
    memory: Memory
    on_nan: OnNan
    buffers: BufferPolicy
    seed: int
    example: Batch | None
    schedule: Schedule | None = None
    is_several: bool = False

    @functools.cached_property
    def on_cpu(self) -> bool:
        """Whether learners compute on the host."""
        return is_cpu(self.device)

    def build(
        self,
        engine: EngineName,
        learners: int,
        *,
        compile: bool = False,
        expected_rounds: int | None = None,
        world: World | None = None,
    ) -> Replicas:
        """Make learners."""
        return Replicas(
            self.model,
            step=self.step,
            optimizer=self.optimizer,
            learners=learners,
            engine=engine,
            sync=self.sync,
            device=self.device,
            dispatch=self.dispatch,
            precision=self.precision,
            clip_norm=self.clip_norm,
            memory=self.memory,
            schedule=self.schedule,
            on_nan=self.on_nan,
            buffers=self.buffers,
            compile=compile,
            seed=self.seed,
            expected_rounds=expected_rounds,
            example=self.example,
            world=world or (TrialWorld() if self.is_several else ALONE),
        )

    def most_learners(self, engine: str, wanted: int) -> int:
        """As many learners as an engine has memory for and the synchroniser is stable with, up to those wanted."""
        room = Room(
            self.device,
            self.model,
            self.optimizer,
            self.sync,
            engine,
            self.example,
            self.precision,
            self.clip_norm,
            self.memory,
        )
        most = room.most(wanted)
        return next((count for count in range(most, 0, -1) if self._is_stable(count)), 0)

    def _is_stable(self, learners: int) -> bool:
        try:
            self.sync.check(learners)
        except SettingError:
            return False
        return True
