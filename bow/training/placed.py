"""Training with a partition of `bow.plan`: the implementation of `found.train`."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.cluster import World, is_member
from bow.data import Batch, Stacked, batch_of
from bow.data.stream import TensorStream
from bow.devices import StreamDevice, available_cores
from bow.engines import Outcome, RoundEvent
from bow.engines.config import DEFAULT_ENGINE
from bow.engines.frozen import FrozenValues
from bow.errors import CaptureError, CheckpointError, DivergenceError, SettingError, warn_user
from bow.planning.problem.partition import Partition
from bow.planning.rules import RULES
from bow.planning.tiles import CapturedOperators, ProcessGroup, TileRuntime, capture_operators
from bow.planning.tiles.agreement import check_agreement
from bow.planning.tiles.capture import refusal
from bow.planning.tiles.communication import wait_for
from bow.planning.tiles.device_state import check_timing
from bow.planning.tiles.runtime import tile_optimizer
from bow.replicas import in_mode
from bow.schedule import Timeline
from bow.seeds import derive_seed
from bow.training.batches import DataSource
from bow.training.checks import refuses_moved
from bow.training.config import TrainConfig
from bow.training.placed_speed import check_speed
from bow.training.replicas import ReplicasConfig, TimelineRecorder
from bow.training.result import Result
from bow.training.train import run_training
from bow.values import processes

STATE_VERSION = "placed strategy 1"

REMEDY = "keep what changes in the batch"

SHARE = 0.01  # largest part of the time in which rank 0 recaptures the step, to check that it is unchanged
FIRST_CHECK_S = 60  # seconds until it first does so
NOT_COMPARED = "partition: its speed is not checked, as no alternative fits in memory beside it"
LEFT_OUT = "batch skipped"  # event of a batch whose size does not fit the partition


@dataclass(frozen=True)
class Placed:
    """A planned partition, and the captured step that it applies to."""

    captured: CapturedOperators  # the operators of the step
    strategy: Partition  # how its operators are split and placed
    alike: bool  # whether every device reads the same batches from the data itself
    example: Batch  # the batch that the step was captured on


def captured_step(replicas_config: ReplicasConfig, batch: Batch) -> CapturedOperators:
    model, step = replicas_config.model, replicas_config.task.step
    before = captured_again(replicas_config, batch)
    for _ in range(2):  # values cached by the first run are there in the second
        frozen = FrozenValues(step, model)
        captured = captured_again(replicas_config, batch)
        name = frozen.changed()
        if name is None and captured.equals(before, model):
            with in_mode(model, True):
                check_agreement(captured, model, batch, step)
            return captured
        before = captured
    what = f"changes {_quoted(name)} in Python, which its operators would not"
    raise refusal(type(model).__name__, what, REMEDY)


def _quoted(name: str | None) -> str:
    return "something" if name is None else repr(name)


def captured_again(replicas_config: ReplicasConfig, batch: Batch) -> CapturedOperators:
    with in_mode(replicas_config.model, True):
        return capture_operators(replicas_config.model, batch, step=replicas_config.task.step)


class PartitionShares(NamedTuple):
    """Learners by device, where each spans a group of devices and counts for the first one."""

    by_device: Sequence[int]
    num_all: int
    own: range


class PartitionRounds:
    """The rounds of a learner that spans several devices; batches of another size are skipped."""

    period = 1
    num_restarts = 0
    ended: Sequence[Outcome] = ()

    def __init__(
        self, runtime: TileRuntime, config: ReplicasConfig, placed: Placed, group: ProcessGroup, leads: bool
    ) -> None:
        self.settings = config.task
        self.sync = config.sync
        self.count = 0
        self.events: list[RoundEvent] = []
        self._runtime = runtime
        self._placed = placed
        self._group = group
        self._check = StepCheck(config, placed, leads)
        self.last: Outcome | None = None

    @property
    def is_hopeless(self) -> bool:
        return self.last is not None and bool((~self.last.finite).any())

    def run(self, batches: Sequence[Any]) -> list[Outcome]:
        self._check.look(self.count)
        outcomes = [self._round(batch_of(each, 0) if isinstance(each, Stacked) else each[0]) for each in batches]
        self.last = outcomes[-1] if outcomes else self.last
        if self._group.learners == 1 and self.last is not None and self.is_hopeless:
            loss = float(self.last.losses)
            raise DivergenceError(
                f"training diverged: the loss was {loss:g} in round {self.count - 1}; lower the learning rate"
            )
        return outcomes

    def check_last(self) -> None:
        """After the last round, capture the step anew, and warn if it has changed."""
        if (difference := self._check.last(self.count)) is not None:
            self.events.append(RoundEvent(self.count, "not equal", difference))
            warn_user(difference)

    def take_events(self) -> list[RoundEvent]:
        events, self.events = self.events, []
        return events

    def _round(self, batch: Batch) -> Outcome:
        index = self.count
        self.count += 1
        if (given := self._for_all(batch)) is None:
            if batch is not None and self._group.rank == 0:
                what = f"a batch of learner {self._group.learner} is not of the partition's batch size"
                self.events.append(RoundEvent(index, LEFT_OUT, f"{what}; it is not trained on"))
            self._runtime.skip()
            loss = torch.full((1,), torch.nan, device=self._group.device)
            return Outcome(loss, torch.ones_like(loss, dtype=torch.bool), [False])
        loss = self._runtime.step(given, index).detach().reshape(1)
        return Outcome(loss, loss.isfinite(), [True])

    def _for_all(self, batch: Batch) -> Batch:
        """Return the batch of the learner's first device on all its devices; None if it does not fit."""
        captured = self._placed.captured
        fits = batch is not None and captured.fits(batch)
        if self._placed.alike or self._group.size == 1:
            return batch if fits else None
        if not self._first_ones(torch.tensor([int(fits)])):
            return None
        dtypes = [captured.dtypes[number] for number in captured.inputs]
        if self._group.rank == 0:
            return [self._first_ones(leaf.to(dtype)) for leaf, dtype in zip(tree_leaves(batch), dtypes, strict=True)]
        shapes = [captured.graph.tensors[number].shape for number in captured.inputs]
        return [self._first_ones(torch.empty(shape, dtype=dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)]

    def _first_ones(self, own: Tensor) -> Tensor:
        tensor = own.to(self._group.device, copy=True).contiguous()
        wait_for([self._group.broadcast(tensor, 0)])
        return tensor


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [0 if each.is_inference() else each._version for each in tensors]


class StepCheck:
    """Recaptures and compares the step when a value that it reads has changed, and at intervals on rank 0."""

    def __init__(self, config: ReplicasConfig, placed: Placed, leads: bool) -> None:
        self._config = config
        self._placed = placed
        self._leads = leads
        self._watch()
        self._check_at = time.perf_counter() + FIRST_CHECK_S
        self._equal_until = self._looked_at = 0

    def look(self, round_index: int) -> None:
        name, began = self._frozen.changed(), time.perf_counter()
        is_due = self._leads and began >= self._check_at
        if name is None and not is_due and _versions(self._frozen.tensors) == self._tensors:
            return
        if (error := self._difference(name, round_index)) is not None:
            raise error
        self._watch()
        now = time.perf_counter()
        self._check_at = now + (now - began) / SHARE

    def _watch(self) -> None:
        self._frozen = FrozenValues(self._config.task.step, self._config.model)
        self._tensors = _versions(self._frozen.tensors)  # a change in place shows as another version

    def last(self, round_index: int) -> str | None:
        """Return how the step differs after the last round; a watched value that changed after it is ignored."""
        has_changed = self._frozen.changed() is not None or _versions(self._frozen.tensors) != self._tensors
        if not self._leads or round_index <= self._looked_at + 1 or has_changed:
            return None
        error = self._difference(None, round_index)
        return None if error is None else str(error)

    def _difference(self, name: str | None, round_index: int) -> CaptureError | None:
        model, self._looked_at = self._config.model, round_index
        if captured_again(self._config, self._placed.example).equals(self._placed.captured, model):
            self._equal_until = round_index
            return None
        what = f"reads {_quoted(name)}, which has changed in Python, in round {round_index}"
        since = f" (it was the same in round {self._equal_until})"
        return refusal(type(model).__name__, f"{what}{since}, and a placed strategy keeps what it was", REMEDY)


class PartitionLearners:
    """Learners that each span a group of devices; the counterpart of `Replicas` in a training."""

    engine = "tiles"

    def __init__(
        self,
        replicas_config: ReplicasConfig,
        placed: Placed,
        group: ProcessGroup,
        world: World,
        note: str | None,
    ) -> None:
        model = copy.deepcopy(replicas_config.model)
        seed = replicas_config.task.seed
        self._runtime = TileRuntime(
            placed.captured,
            placed.strategy,
            model,
            replicas_config.optimizer,
            group,
            sync=replicas_config.sync,
            seed=derive_seed(seed, group.learner) if group.learner else seed,
        )
        self._placed = placed
        self.device = group.device
        self.world = world
        by_device = [int(rank % group.size == 0) for rank in range(world.size)]
        self.group = PartitionShares(by_device, group.learners, range(group.learner, group.learner + 1))
        self.loop = PartitionRounds(self._runtime, replicas_config, placed, group, world.leads)
        if note is not None:
            self.loop.events.append(RoundEvent(0, "partition", note))
        self.timeline = TimelineRecorder(self._runtime.record, self._take_timeline)
        self.central = model.eval()
        self.num_parameters = sum(each.numel() for each in model.parameters() if each.requires_grad)
        self.last: Outcome | None = None

    @property
    def learners(self) -> int:
        return self.group.num_all

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._runtime.optimizer

    @property
    def rounds(self) -> int:
        return self.loop.count

    def rounds_at_once(self, batches: Sequence[Any]) -> list[Outcome]:
        return self.loop.run(batches)

    def settle(self) -> None:
        self._runtime.gather_into(self.central)

    def export(self) -> nn.Module:
        self.settle()
        return copy.deepcopy(self.central).cpu()

    def training_state(self) -> dict[str, Any] | None:
        on_cpu = tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), self._runtime.state())
        devices = self.world.gather(on_cpu)
        if devices is None:
            return None
        strategy = self._placed.strategy.to_json()
        return {"version": STATE_VERSION, "strategy": strategy, "round": self.rounds, "devices": devices}

    def load_training_state(self, state: Mapping[str, Any] | None, learners: int | None = None) -> None:
        problem = None if state is None else self._mismatch(state)
        told = self.world.broadcast((problem, None if state is None or problem else state["round"]))
        if told[1] is None:
            raise CheckpointError(told[0] or "no state was given; resume from a checkpoint")
        own = self.world.scatter(None if state is None else state["devices"])
        self._runtime.load_state(own)
        self.loop.count = told[1]

    def close(self) -> None:
        """Do nothing: nothing runs between rounds."""

    def _take_timeline(self) -> Timeline:
        """Return the timeline of this learner's devices; a collective call."""
        self._runtime.record(False)
        return self._runtime.timeline()

    def _mismatch(self, state: Mapping[str, Any]) -> str | None:
        if state.get("version") != STATE_VERSION:
            return "the checkpoint is of a training without this partition; resume with bow.train, or start a new one"
        if state["strategy"] != self._placed.strategy.to_json() or len(state["devices"]) != self.world.size:
            return (
                "the checkpoint was made with another partition, or on another number of devices; "
                "resume with the partition that the training began with"
            )
        return None


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
    return run_training(TrainConfig(model=model, data=data, partition=partition, check_partition=check, **settings))


def place_learners(
    config: TrainConfig, replicas_config: ReplicasConfig, placed: Placed, world: World, *, checks: bool
) -> tuple[PartitionLearners, Callable[[Path], None] | None]:
    """Build this process's learner, and a function that saves the comparison with data parallelism, if any."""
    device = replicas_config.device
    group = ProcessGroup(device, placed.strategy.learners)  # type: ignore[arg-type]
    checked, note = None, None
    if checks and config.check_partition and world.size > 1:
        checked = check_speed(replicas_config, placed, group, world)
        note = NOT_COMPARED if checked is None else f"partition: {checked.summary}"
    learners = PartitionLearners(replicas_config, placed, group, world, note=note if world.leads else None)
    return learners, None if checked is None else checked.save
