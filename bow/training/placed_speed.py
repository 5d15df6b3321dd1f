"""The speed of a partition of `bow.plan`, against alternatives that need no search."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bow.cluster import World
from bow.data import Batch
from bow.devices.memory import free_bytes
from bow.errors import SettingError, disk_reason, warn_user
from bow.planning.problem.partition import Partition, everything_on
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.tiles import CapturedOperators, ProcessGroup, TileRuntime
from bow.planning.tiles.communication import synchronise
from bow.planning.tiles.tile_costs import predicted_timeline, save_timelines
from bow.schedule import Timeline
from bow.training.replicas import ReplicasConfig

if TYPE_CHECKING:
    from bow.training.placed import Placed

WARM_UP = 2
TURNS = 7
STEPS = 2  # per turn; each partition takes TURNS turns
MARGIN = 1.05  # largest accepted time relative to the fastest alternative: runs differ by as much
COPIES = 5  # of weights and other tensors of a step that a device needs for the comparison, at most

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
            warn_user(f"{FILE} cannot be written ({disk_reason(error)}); training continues")


def check_speed(replicas_config: ReplicasConfig, placed: "Placed", group: ProcessGroup, world: World) -> Checked | None:
    """Time a partition against data parallelism and one device, on copies; a collective call.

    Those that a device has no memory for are left out; None if none is left.
    """
    captured, strategy = placed.captured, placed.strategy
    graph = captured.graph
    all_devices = group if strategy.learners == 1 else ProcessGroup(group.device)
    free = min(all_devices.all_gather(free_bytes(group.device)))
    weights, tensors = (sum(each.num_bytes for each in of.values()) for of in (graph.weights, graph.tensors))
    # Devices that share one memory, and learners on them: on a CPU, those of a node.
    devices = world.size // world.nodes if group.device.type == "cpu" else 1
    learners = math.ceil(devices / group.size)
    on_one = COPIES * (weights + tensors)
    free -= COPIES * (devices * weights + learners * tensors)  # the partition itself, which may replicate weights
    splits = {}
    if free >= (needed := COPIES * devices * (weights + tensors // world.size)):
        splits["data parallelism"], free = data_parallel(graph, RULES, world.size), free - needed
    if free >= on_one:
        splits["one device"] = everything_on(graph)
    others = {name: Partition(graph.hash, each) for name, each in splits.items()}
    others = {name: other for name, other in others.items() if other != strategy}
    if not others:
        return None
    batch = world.broadcast(placed.example)  # the same in all processes
    own = _runtime(captured, strategy, replicas_config, group)
    runtimes = {name: _runtime(captured, other, replicas_config, all_devices) for name, other in others.items()}
    own_s, *others_s = _take_turns([own, *runtimes.values()], batch, all_devices)
    own.record()
    own.step(batch, 0)
    own.record(False)
    predicted = predicted_timeline(graph, strategy, all_devices, own.optimizer)
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
    synchronise(group.device)
    return time.perf_counter() - start
