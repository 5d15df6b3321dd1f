"""What `bow.train` is given beside a placed strategy: what fits it, and on how many devices it runs."""

import torch

from bow.cluster import is_member
from bow.data.tensors import TensorStream
from bow.devices import StreamDevice, available_cores
from bow.engines.config import DEFAULT_ENGINE
from bow.errors import SettingError
from bow.planning.problem.partition import Partition
from bow.planning.rules import RULES
from bow.planning.tiles.averaging import check_timing
from bow.planning.tiles.runtime import tile_optimizer
from bow.training.config import TrainConfig
from bow.training.data_source import DataSource
from bow.training.partition_learners import Placed, captured_step
from bow.training.replicas_config import ReplicasConfig
from bow.values import processes


def check_settings(partition: Partition, config: TrainConfig) -> None:
    """Refuse settings that a partition does not carry out."""
    fixed = (
        ("engine", config.engine, DEFAULT_ENGINE, "its operators run in tiles, and not by an engine"),
        ("learners", config.tuner, None, "it says how many learners there are"),
        ("precision", config.precision, None, "it computes in the model's own types; convert the model"),
        ("clip_norm", config.clip_norm, None, "no device sees a whole gradient"),
        ("buffers", config.validation.buffers, "average", "learners' statistics are averaged"),
        ("bucket_mb", config.devices.bucket_mb, None, "its sums are those of the partition"),
    )
    for name, value, wanted, why in fixed:
        if value != wanted:
            raise SettingError(f"{name}={value!r} does not go with a partition of bow.plan: {why}; leave it out")
    learners = config.num_learners
    if learners not in ("auto", partition.learners):
        raise SettingError(
            f'learners={learners} contradicts the partition, which has {partition.learners}; make it that, or "auto"'
        )
    if isinstance(config.devices.count, StreamDevice):
        raise SettingError("a partition runs on processes, one for each device; give their number as devices=")
    if partition.learners > 1:
        check_timing(config.sync)


def devices_of(strategy: Partition, asked: object, count: int | None, device: torch.device) -> int | None:
    """How many processes a strategy runs on: as many as are asked for, or as it names devices."""
    if is_member() or not isinstance(asked, str):
        if count is not None:
            strategy.devices_per_learner(count)
        return count
    named = max((device for split in strategy.splits for device in split.devices), default=0) + 1
    needed = named * max(1, strategy.learners)
    if device.type != "cuda":
        return processes("the number of devices of the strategy", needed, len(available_cores()))
    gpus = torch.cuda.device_count()
    if needed > gpus:
        raise SettingError(
            f'the strategy is for {needed} devices, and here are {gpus} GPUs; use devices="cpu", or plan for {gpus}'
        )
    return needed


def placed_step(
    strategy: Partition, replicas_config: ReplicasConfig, opened: DataSource, num_devices: int | None
) -> Placed:
    """A strategy with the step that it is for."""
    model = replicas_config.model
    captured = captured_step(replicas_config, opened.example)
    if num_devices is not None:
        strategy.check(captured.graph, num_devices, RULES)
    tile_optimizer(replicas_config.optimizer, model, {}, {})  # only to see whether it treats every element alike
    return Placed(captured, strategy, isinstance(opened.stream, TensorStream), opened.example)
