"""Training by a partition of `bow.plan`: what `found.train` does, and the learners of its processes."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from bow.cluster import World
from bow.engines import Batch
from bow.errors import SettingError
from bow.planning.problem.partition import Partition
from bow.planning.tiles import ProcessGroup
from bow.training.config import TrainConfig
from bow.training.moved import refuses_moved
from bow.training.partition_check import check_speed
from bow.training.partition_learners import PartitionLearners, Placed
from bow.training.replicas_config import ReplicasConfig
from bow.training.result import Result
from bow.training.train import run_training


@refuses_moved("found.train")
def train_by(partition: Partition, model: Any, data: Any, *, check: bool, **settings: Any) -> Result:
    """Train a model by a partition; the settings are those of `bow.train`."""
    known = {each.name for each in fields(TrainConfig)} - {"partition", "check_partition", "source"}
    unknown = next((name for name in settings if name not in known), None)
    if unknown is not None:
        raise SettingError(f"found.train has no {unknown}=; it takes the settings of bow.train")
    config = TrainConfig(model=model, data=data, partition=partition, check_partition=check, **settings)
    return run_training(config)


def place_learners(
    config: TrainConfig, replicas_config: ReplicasConfig, placed: Placed, batch: Batch, world: World, *, checks: bool
) -> tuple[PartitionLearners, Callable[[Path], None] | None]:
    """Make the learner of this process, and what writes the comparison with data parallelism, if one was made."""
    device = replicas_config.device
    group = ProcessGroup(device, placed.strategy.learners)  # type: ignore[arg-type]
    checked = check_speed(replicas_config, placed, batch, group, world) if checks and config.check_partition else None
    note = f"partition: {checked.summary}" if checked is not None and world.leads else None
    return PartitionLearners(
        replicas_config, placed, group, world, note=note
    ), None if checked is None else checked.save
