"""Training with a partition of `bow.plan`: the implementation of `found.train`."""

import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from bow.cluster import World, is_member
from bow.data.tensors import TensorStream
from bow.devices import StreamDevice, available_cores
from bow.devices.memory import free_bytes
from bow.engines import Batch
from bow.engines.config import DEFAULT_ENGINE
from bow.errors import SettingError, disk_reason
from bow.planning.problem.partition import Partition, everything_on
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.tiles import CapturedOperators, ProcessGroup, TileRuntime
from bow.planning.tiles.device_state import check_timing
from bow.planning.tiles.runtime import tile_optimizer
from bow.planning.tiles.tile_costs import predicted_timeline, save_timelines
from bow.schedule import Timeline
from bow.training.config import TrainConfig
from bow.training.data_source import DataSource
from bow.training.moved import refuses_moved
from bow.training.partition_learners import PartitionLearners, Placed, captured_step
from bow.training.replicas_config import ReplicasConfig
from bow.training.result import Result
from bow.training.train import run_training
from bow.values import processes

WARM_UP = 2
TURNS = 7
STEPS = 2  # per turn; each partition takes TURNS turns
MARGIN = 1.05  # largest accepted time relative to the fastest alternative: runs differ by as much
COPIES = 5  # of all tensors of a step, weights among them, that one device needs for the comparison, at most

FILE = "partition_timeline.json"


@dataclass(frozen=True)
class Checked:
    """A partition timed against the alternatives that need no search."""

    batch_s: float  # seconds per batch of one learner
    others_s: Mapping[str, float]  # seconds per batch by alternative
    predicted: Timeline  # simulated timeline of a step
    measured: Timeline  # timeline of a step on the devices of the first learner

    @property
    def summary(self) -> str:
        others = (f"{name} {1e3 * seconds:.1f} ms" for name, seconds in self.others_s.items())
        return ", ".join([f"{1e3 * self.batch_s:.1f} ms a batch", *others])

    def save(self, folder: Path) -> None:
        try:
            save_timelines(folder / FILE, {"predicted": self.predicted, "measured": self.measured})
        except OSError as error:
            warnings.warn(f"{FILE} cannot be written ({disk_reason(error)}); training continues", stacklevel=2)


def check_speed(replicas_config: ReplicasConfig, placed: Placed, group: ProcessGroup, world: World) -> Checked | None:
    """Time a partition against data parallelism and one device, on copies; None on one device. A collective call."""
    if world.size == 1:
        return None
    captured, strategy = placed.captured, placed.strategy
    graph = captured.graph
    splits = {"data parallelism": data_parallel(graph, RULES, world.size)}
    needed_bytes = COPIES * sum(tensor.num_bytes for tensor in graph.tensors.values())
    if min(group.all_gather(free_bytes(group.device))) >= needed_bytes:
        splits["one device"] = everything_on(graph)
    others = {name: Partition(graph.hash, each) for name, each in splits.items()}
    others = {name: other for name, other in others.items() if other != strategy}
    batch = world.broadcast(placed.example)  # the same in all processes
    all_devices = group if strategy.learners == 1 else ProcessGroup(group.device)
    own = _runtime(captured, strategy, replicas_config, group)
    runtimes = {name: _runtime(captured, other, replicas_config, all_devices) for name, other in others.items()}
    own_s, *others_s = _take_turns([own, *runtimes.values()], batch, all_devices)
    own.record()
    own.step(batch, 0)
    own.record(False)
    predicted = predicted_timeline(graph, strategy, all_devices, type(own.optimizer).__name__)
    seconds = dict(zip(others, others_s, strict=True))
    checked = world.broadcast(Checked(own_s / strategy.learners, seconds, predicted, own.timeline()))
    fastest = min(checked.others_s, key=checked.others_s.__getitem__)
    if checked.batch_s > MARGIN * checked.others_s[fastest]:
        remedy = "train without a partition" if fastest == "one device" else "plan again"
        raise SettingError(
            f"the partition is slower than {fastest} here: {checked.summary}; {remedy}, or "
            "train by it all the same with check=False"
        )
    return checked


def _runtime(
    captured: CapturedOperators, strategy: Partition, replicas_config: ReplicasConfig, group: ProcessGroup
) -> TileRuntime:
    model, optimizer = replicas_config.model, replicas_config.optimizer
    return TileRuntime(
        captured, strategy, model, optimizer, group, sync=replicas_config.sync, seed=replicas_config.task.seed
    )


def _take_turns(runtimes: Sequence[TileRuntime], batch: Batch, group: ProcessGroup) -> list[float]:
    """Return the median seconds per step of each, on the slowest device."""
    for runtime in runtimes:
        _step_seconds(runtime, batch, WARM_UP, group)
    turns = [
        [max(group.all_gather(_step_seconds(runtime, batch, STEPS, group))) / STEPS for runtime in runtimes]
        for _ in range(TURNS)
    ]
    return [statistics.median(seconds) for seconds in zip(*turns, strict=True)]


def _step_seconds(runtime: TileRuntime, batch: Batch, steps: int, group: ProcessGroup) -> float:
    """Return the seconds of some steps on this device, after a barrier."""
    group.all_gather(None)
    start = time.perf_counter()
    for index in range(steps):
        runtime.step(batch, index)
    if group.device.type == "cuda":
        torch.cuda.synchronize(group.device)
    return time.perf_counter() - start


def check_settings(partition: Partition, config: TrainConfig) -> None:
    fixed = (
        ("precision", config.engine.precision, None, "it computes in the model's own types; convert the model"),
        ("engine", config.engine, DEFAULT_ENGINE, "its operators run in tiles, and not by an engine"),
        ("learners", config.tuner, None, "it says how many learners there are"),
        ("clip_norm", config.clip_norm, None, "no device sees a whole gradient"),
        ("buffers", config.validation.buffers, "average", "learners' statistics are averaged"),
        ("bucket_mb", config.devices.bucket_mb, None, "its sums are those of the partition"),
    )
    for name, value, wanted, why in fixed:
        if value != wanted:
            raise SettingError(f"{name}={value!r} does not work with a partition of bow.plan: {why}; leave it out")
    learners = config.num_learners
    if learners not in ("auto", partition.learners):
        raise SettingError(
            f'learners={learners} contradicts the partition, which has {partition.learners}; use that number or "auto"'
        )
    if isinstance(config.devices.count, StreamDevice):
        raise SettingError("a partition runs on processes, one for each device; give their number as devices=")
    if partition.learners > 1:
        check_timing(config.sync)


def devices_of(strategy: Partition, asked: object, count: int | None, device: torch.device) -> int | None:
    """Return the number of processes for a partition: as many as requested, or as it names devices."""
    if is_member() or not isinstance(asked, str):
        if count is not None:
            strategy.devices_per_learner(count)
        return count
    named = max((device for split in strategy.splits for device in split.devices), default=0) + 1
    needed = named * max(1, strategy.learners)
    if device.type != "cuda":
        return processes("the number of devices of the partition", needed, len(available_cores()))
    gpus = torch.cuda.device_count()
    if needed > gpus:
        raise SettingError(
            f'the partition is for {needed} devices, got {gpus} GPUs; use devices="cpu", or plan for {gpus}'
        )
    return needed


def placed_step(
    strategy: Partition, replicas_config: ReplicasConfig, opened: DataSource, num_devices: int | None
) -> Placed:
    model = replicas_config.model
    captured = captured_step(replicas_config, opened.example)
    if num_devices is not None:
        strategy.check(captured.graph, num_devices, RULES)
    tile_optimizer(replicas_config.optimizer, model, {}, {})  # only checks that the optimizer is elementwise
    return Placed(captured, strategy, isinstance(opened.stream, TensorStream), opened.example)


@refuses_moved("found.train")
def train_by(partition: Partition, model: Any, data: Any, *, check: bool, **settings: Any) -> Result:
    known = {each.name for each in fields(TrainConfig)} - {"partition", "check_partition", "source"}
    unknown = next((name for name in settings if name not in known), None)
    if unknown is not None:
        raise SettingError(f"found.train has no {unknown}=; it takes the settings of bow.train")
    config = TrainConfig(model=model, data=data, partition=partition, check_partition=check, **settings)
    return run_training(config)


def place_learners(
    config: TrainConfig, replicas_config: ReplicasConfig, placed: Placed, world: World, *, checks: bool
) -> tuple[PartitionLearners, Callable[[Path], None] | None]:
    """Build this process's learner, and a function that saves the comparison with data parallelism, if any."""
    device = replicas_config.device
    group = ProcessGroup(device, placed.strategy.learners)  # type: ignore[arg-type]
    checked = check_speed(replicas_config, placed, group, world) if checks and config.check_partition else None
    note = f"partition: {checked.summary}" if checked is not None and world.leads else None
    return PartitionLearners(
        replicas_config, placed, group, world, note=note
    ), None if checked is None else checked.save
