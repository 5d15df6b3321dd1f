"""Before a training by a placed strategy: some steps by it and by data parallelism, and what was predicted of it."""

import statistics
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from bow.cluster import World
from bow.engines import Batch
from bow.errors import SettingError, disk_reason
from bow.planning.problem.partition import Partition
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.tiles import CapturedOperators, ProcessGroup, TileRuntime
from bow.planning.tiles.predicting import predicted_timeline, save_timelines
from bow.schedule import Timeline
from bow.training.partition_learners import Placed
from bow.training.replicas_config import ReplicasConfig

WARM_UP = 2
TURNS = 7
STEPS = 2
"""Each of the two strategies has so many turns of so many steps."""

MARGIN = 1.05
"""A strategy is slower that takes more than so many times what data parallelism takes: runs differ by as much."""

FILE = "partition_timeline.json"


@dataclass(frozen=True)
class Checked:
    """How a placed strategy did beside data parallelism."""

    batch_s: float  # what it takes for a batch of one learner
    data_s: float  # what data parallelism takes, with all devices
    predicted: Timeline  # when a step was expected to run what
    measured: Timeline  # when a step ran what, on the devices of the first learner

    @property
    def summary(self) -> str:
        """Both times in a sentence."""
        return f"{1e3 * self.batch_s:.1f} ms a batch, data parallelism {1e3 * self.data_s:.1f} ms"

    def save(self, folder: Path) -> None:
        """Write both timelines into one file, if that can be written."""
        try:
            save_timelines(folder / FILE, {"predicted": self.predicted, "measured": self.measured})
        except OSError as error:
            warnings.warn(f"{FILE} cannot be written ({disk_reason(error)}); the training goes on", stacklevel=2)


def check_speed(
    replicas_config: ReplicasConfig, placed: Placed, batch: Batch, group: ProcessGroup, world: World
) -> Checked | None:
    """Time a strategy beside data parallelism, on copies that leave no trace in the training.

    All processes ask for it. There is nothing to compare with on one device, or where the strategy is data parallelism.
    """
    captured, strategy = placed.captured, placed.strategy
    data = Partition(captured.graph.hash, data_parallel(captured.graph, RULES, world.size))
    if world.size == 1 or strategy == data:
        return None
    batch = world.broadcast(batch)  # the same for all, whatever their data have dealt
    all_devices = group if strategy.learners == 1 else ProcessGroup(group.device)
    own = _runtime(captured, strategy, replicas_config, group)
    other = _runtime(captured, data, replicas_config, all_devices)
    own_s, data_s = _take_turns(own, other, batch, all_devices)
    measured = _recorded(own, batch)
    predicted = predicted_timeline(captured.graph, strategy, all_devices, type(own.optimizer).__name__)
    checked = world.broadcast(Checked(own_s / strategy.learners, data_s, predicted, measured))
    if checked.batch_s > MARGIN * checked.data_s:
        raise SettingError(
            f"the strategy is slower than data parallelism here: {checked.summary}; plan again, or "
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


def _take_turns(own: TileRuntime, other: TileRuntime, batch: Batch, group: ProcessGroup) -> tuple[float, float]:
    """Median seconds of a step of each, on the slowest device."""
    seconds: dict[TileRuntime, list[float]] = {own: [], other: []}
    for runtime in seconds:
        _stint(runtime, batch, WARM_UP, group)
    for _ in range(TURNS):
        for runtime, taken in seconds.items():
            taken.append(max(group.all_gather(_stint(runtime, batch, STEPS, group))) / STEPS)
    return statistics.median(seconds[own]), statistics.median(seconds[other])


def _stint(runtime: TileRuntime, batch: Batch, steps: int, group: ProcessGroup) -> float:
    """Seconds that some steps take here, begun by all together."""
    group.all_gather(None)
    start = time.perf_counter()
    for index in range(steps):
        runtime.step(batch, index)
    if group.device.type == "cuda":
        torch.cuda.synchronize(group.device)
    return time.perf_counter() - start


def _recorded(runtime: TileRuntime, batch: Batch) -> Timeline:
    runtime.record()
    runtime.step(batch, 0)
    runtime.record(False)
    return runtime.timeline()
