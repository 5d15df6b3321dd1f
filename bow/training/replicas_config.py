"""Settings to build `Replicas`, except those that the tuner chooses: engine, number of learners, compilation."""

import dataclasses
import functools
from dataclasses import dataclass

import torch
from torch import nn

from bow.cluster import ALONE, TrialWorld, World
from bow.devices import StreamDevice
from bow.engines import Batch, LearningConfig
from bow.engines.config import MemoryFormat
from bow.engines.memory import MemoryBudget, is_cpu
from bow.errors import SettingError
from bow.replicas import BufferPolicy, OptimizerFactory
from bow.sync import Synchroniser
from bow.training.replicas import Replicas


@dataclass(frozen=True)
class ReplicasConfig:
    """Arguments of `Replicas`, common to trials and training."""

    model: nn.Module  # the template
    task: LearningConfig
    optimizer: OptimizerFactory
    sync: Synchroniser
    device: torch.device | StreamDevice
    buffers: BufferPolicy
    example: Batch | None  # a batch of one learner, to predict memory from
    moving_average: bool = False  # whether one of the central model is kept as well
    is_several: bool = False  # whether there are other devices: trials then use the training's code paths

    @functools.cached_property
    def on_cpu(self) -> bool:
        return is_cpu(self.device)

    def with_engine(self, **changes: object) -> "ReplicasConfig":
        engine = dataclasses.replace(self.task.engine, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(self, task=dataclasses.replace(self.task, engine=engine))

    def build(
        self,
        engine: str,
        learners: int,
        *,
        compile: bool = False,
        memory_format: MemoryFormat = None,
        expected_rounds: int | None = None,
        world: World | None = None,
    ) -> Replicas:
        if self.moving_average:
            self._budget(engine).check(learners)  # `Replicas` does not account for the average
        settings = {
            **{name: getattr(self.task, name) for name in ("step", "clip_norm", "on_nan", "seed", "batch_size")},
            **{name: getattr(self, name) for name in ("optimizer", "sync", "device", "buffers", "example")},
        }
        made = Replicas(
            self.model,
            **settings,
            learners=learners,
            engine=self.task.engine.run_by(engine, compile, memory_format),
            expected_rounds=expected_rounds,
            world=world or (TrialWorld() if self.is_several else ALONE),
        )
        made.memory = dataclasses.replace(made.memory, moving_average=self.moving_average)
        return made

    def most_learners(self, engine: str, wanted: int) -> int:
        """Return the most learners, up to `wanted`, that fit in memory and with which the synchroniser is stable."""
        most = self._budget(engine).most(wanted)
        return next((count for count in range(most, 0, -1) if self._is_stable(count)), 0)

    def _budget(self, engine: str) -> MemoryBudget:
        parts = self.device, self.model, self.optimizer, self.sync, engine, self.example, self.task
        return MemoryBudget(*parts, self.moving_average)

    def _is_stable(self, learners: int) -> bool:
        try:
            self.sync.check(learners)
        except SettingError:
            return False
        return True
