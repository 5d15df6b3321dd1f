"""Predict the memory that learners need, check it before they are created, and explain rounds that run out of it.

The prediction is a lower bound. Rows, optimizer states and buffers are exact; activations are the tensors saved for the
backward pass, without temporaries inside operators. If it exceeds the memory, learners do not fit; if it nearly does,
they may not fit.
"""

import contextlib
import copy
import functools
import itertools
import math
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.data import Batch
from bow.devices import StreamDevice
from bow.devices import memory as device_memory
from bow.engines.outcome import LearningConfig
from bow.engines.task import own_loss, parts_of
from bow.errors import DeviceMemoryError, SettingError
from bow.replicas import (
    OptimizerFactory,
    ReplicaMatrix,
    has_lazy_modules,
    is_for_one_learner,
    kind_of,
    num_state_tensors,
)
from bow.replicas.layout import ALIGNMENT
from bow.sync import Members, Synchroniser, Timing, is_plain_sma

Place: TypeAlias = torch.device | StreamDevice  # where learners reside
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

WORKSPACE_CONFIG = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACE_BYTES = 8_519_680
WORKSPACE_BYTES_HOPPER = 2**25  # cuBLAS workspace per handle and stream, as torch sets it up


def bytes_text(count: float) -> str:
    size, unit = float(count), 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {UNITS[unit]}" if unit else f"{count:.0f} B"


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of k learners on a device, in bytes: `k learner + min(k, m) task + device`."""

    learners: int  # k
    row_bytes: int  # the trainable parameters of one learner, padding included
    rows_per_learner: int = 3  # weights, gradient, and the correction where the synchroniser keeps one
    state_tensors: int = 0  # tensors of a row's size that the optimizer keeps for a learner
    rows_per_device: int = 4  # z, its next value, the sum, what the synchroniser keeps, and a moving average of z
    buffer_bytes: int = 0  # buffers of one module
    frozen_bytes: int = 0  # parameters that are not trained, which all learners share
    activation_bytes: int | None = None  # saved by one learning task for its backward pass; None: unknown
    learners_at_once: int | None = None  # m, learning tasks that run at the same time; None: all
    workspace_bytes: int = 0  # of libraries, for each of those

    @property
    def learner_bytes(self) -> int:
        return (self.rows_per_learner + self.state_tensors) * self.row_bytes + self.buffer_bytes

    @property
    def task_bytes(self) -> int:
        """Memory of a running learning task: activations first, gradients in the end."""
        return max(self.activation_bytes or 0, 2 * self.row_bytes) + self.workspace_bytes

    @property
    def num_tasks(self) -> int:
        return self.learners if self.learners_at_once is None else min(self.learners, self.learners_at_once)

    @property
    def device_bytes(self) -> int:
        """Memory independent of the number of learners; the central model has buffers too."""
        return self.rows_per_device * self.row_bytes + self.frozen_bytes + self.buffer_bytes

    @property
    def held_bytes(self) -> int:
        return self.learners * self.learner_bytes + self.device_bytes

    @property
    def total_bytes(self) -> int:
        return self.held_bytes + self.num_tasks * self.task_bytes

    def fitting(self, room_bytes: int) -> int:
        """Return how many learners fit into this many bytes, 0 if not even one does."""
        room = room_bytes - self.device_bytes
        together = self.learner_bytes + self.task_bytes
        most = self.learners_at_once
        if together <= 0 or most is None or room < most * together:
            return max(room // max(together, 1), 0)
        return (room - most * self.task_bytes) // max(self.learner_bytes, 1)


def predict_memory(
    model: nn.Module,
    optimizer: OptimizerFactory,
    sync: Synchroniser,
    *,
    learners: int,
    engine: str,
    place: Place,
    saved: Sequence[int] | None = None,
    clip_norm: float | None = None,
    offload: bool = False,
    moving_average: bool = False,
) -> MemoryNeed:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    lazy = has_lazy_modules(model)
    elements = 0 if lazy else sum(parameter.numel() for parameter in trainable)
    itemsize = trainable[0].itemsize if trainable else 0
    corrections, kept = _rows_of(sync, averages=not sync.follows(learners))
    state_tensors = num_state_tensors(optimizer)
    frozen_bytes = 0 if lazy else sum(parameter.nbytes for parameter in frozen)
    own_bytes = frozen_bytes if isinstance(sync, Members) else 0  # members have frozen parameters of their own
    in_one_pass = engine not in (("eager", "streams") if is_cpu(place) else ("eager",))
    native = is_cpu(place) and engine == "graph"
    steps = in_one_pass and (is_plain_sma(sync) or (native and sync.timing is not Timing.BEFORE_STEP))
    if steps and clip_norm is None:
        kind = kind_of(optimizer)
        if kind == "sgd":
            state_tensors = 1  # momenta whether they are used or not
        if is_plain_sma(sync) and (kind == "sgd" or (kind == "adam" and native)):
            corrections = False  # never in memory
    return MemoryNeed(
        learners=learners,
        row_bytes=-(-elements // ALIGNMENT) * ALIGNMENT * itemsize,
        rows_per_learner=2 + corrections,
        state_tensors=state_tensors,
        rows_per_device=3 + kept + moving_average,
        buffer_bytes=own_bytes + (0 if lazy else sum(buffer.nbytes for buffer in model.buffers())),
        frozen_bytes=frozen_bytes - own_bytes,
        activation_bytes=None if saved is None else _on_device(saved, offload),
        learners_at_once=1 if engine == "eager" else None,
        workspace_bytes=_workspace_bytes(place),
    )


def saved_bytes(model: nn.Module, batch: Batch, precision: str | None = None) -> list[int] | None:
    """Return the sizes of the allocations that a forward pass saves; None if the meta device cannot run it."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    inputs = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    try:
        meta = _on_meta(model)
        inputs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), inputs)
        if precision == "bfloat16":
            meta = meta.to(torch.bfloat16)
            inputs = tree_map_only(Tensor, lambda t: t.to(torch.bfloat16) if t.is_floating_point() else t, inputs)
        own = {tensor.untyped_storage()._cdata for tensor in itertools.chain(meta.parameters(), meta.buffers())}
        saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with _FusedAttention(), torch.enable_grad(), torch.random.fork_rng(devices=[]), saving:
            outputs = meta(**inputs) if isinstance(batch, dict) else meta(inputs)
    except Exception:  # an operator without shapes on the meta device, or a model that reads values
        return None
    results = {tensor.untyped_storage()._cdata: tensor for tensor in tree_leaves(outputs) if isinstance(tensor, Tensor)}
    return [tensor.untyped_storage().nbytes() for key, tensor in (kept | results).items() if key not in own]


class _FusedAttention(TorchFunctionMode):
    """Run attention as devices do; by default, the meta device would save the matrix of all pairs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            with contextlib.suppress(Exception):  # unsupported shapes
                return self._fused(*args, **kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def _fused(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any) -> Any:
        operator: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return operator(query, key, value, attn_mask=attn_mask)[0]


def _on_meta(model: nn.Module) -> nn.Module:
    """Copy a model to the meta device, without copying its tensors first."""
    tensors = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
    memo: dict[int, Any] = {}
    for key, tensor in tensors.items():
        made = torch.empty_like(tensor, device="meta")
        memo[key] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    return copy.deepcopy(model, memo)


def _on_device(sizes: Sequence[int], offload: bool) -> int:
    """Return a lower bound of a task's activations that are on the device at the same time."""
    if not offload:
        return sum(sizes)
    from bow.engines.saved_tensors import MAX_IN_FLIGHT, MIN_BYTES  # rarely needed

    large = sorted(size for size in sizes if size >= MIN_BYTES)
    return sum(size for size in sizes if size < MIN_BYTES) + sum(large[-MAX_IN_FLIGHT - 1 :])


def _rows_of(sync: Synchroniser, averages: bool) -> tuple[bool, int]:
    """Return whether a synchroniser needs rows of corrections, and how many vectors it keeps, found by a trial run."""
    rows = ReplicaMatrix(ALIGNMENT, 2, torch.float32, torch.device("cpu"))
    try:
        with torch.no_grad():
            for _ in range(2):
                rows.add_row()
            sync.start(rows)
            if averages:
                sync.prepare(rows)
                sync.contribute(rows, 2, 2)
                sync.apply(rows, 2, 2)
    except Exception:  # a user's own synchroniser that rejects these learners
        return False, 0
    return rows.has_corrections, len(rows.state)


def is_cpu(place: Place) -> bool:
    return isinstance(place, torch.device) and place.type == "cpu"


def _workspace_bytes(place: Place) -> int:
    device = place.torch_device if isinstance(place, StreamDevice) else place
    if device.type != "cuda":
        return 0
    configured = os.environ.get(WORKSPACE_CONFIG, "")
    sizes = [int(number) for number in configured.strip(":").split(":") if number.isdecimal()]
    if sizes and len(sizes) % 2 == 0:  # :KiB:COUNT, several times
        return sum(map(math.prod, zip(sizes[::2], sizes[1::2], strict=True))) * 1024
    return WORKSPACE_BYTES_HOPPER if torch.cuda.get_device_capability(device) >= (9, 0) else WORKSPACE_BYTES


MOST_LEARNERS = 4096  # each has its own module, which takes milliseconds to create
SPARE_SHARE = 2  # rows for later learners take at most 1 / SPARE_SHARE of the rest: a lower bound needs a margin
OWN_LOSS = LearningConfig(own_loss)
_ASKED = re.compile(r"ried to allocate ([\d.]+ \w+)")


@dataclass(frozen=True)
class MemoryBudget:
    """The memory of a device, and the needs of its learners."""

    # On a device with streams the needed memory must be free. On a CPU other processes may free memory, and idle pages
    # may be swapped out: only needs above the total of the machine or container are refused, without activations, which
    # are estimates.

    place: Place
    model: nn.Module  # the template
    optimizer: OptimizerFactory  # makes the optimizer
    sync: Synchroniser
    engine: str  # name
    batch: Batch | None = None  # one learner's, where `loss` takes it; None: activations are unknown
    task: LearningConfig = OWN_LOSS
    moving_average: bool = False  # of the central model

    @property
    def bytes(self) -> int:
        return device_memory.host_memory()[0] if is_cpu(self.place) else device_memory.free_bytes(self.place)

    def need(self, learners: int) -> MemoryNeed:
        return predict_memory(
            self.model,
            self.optimizer,
            self.sync,
            learners=learners,
            engine=self.engine,
            place=self.place,
            saved=self._saved,
            clip_norm=self.task.clip_norm,
            offload=self.task.engine.offload,
            moving_average=self.moving_average,
        )

    def most(self, wanted: int) -> int:
        if wanted > 1 and not isinstance(self.sync, Members) and is_for_one_learner(self.optimizer):
            wanted = 1  # members have optimizers of their own
        room = self.bytes
        fitting = max(self.need(wanted).fitting(room), int(self.need(1).total_bytes <= room))
        return min(wanted, fitting, MOST_LEARNERS)

    def check(self, learners: int) -> int:
        """Raise if learners do not fit; return the bytes that rows of later learners may take."""
        room, need = self.bytes, self.need(learners)
        if learners > MOST_LEARNERS:
            raise SettingError(
                f"learners={learners} is more than the {MOST_LEARNERS} that a device can have; "
                f'use learners={self.most(learners)} or learners="auto"'
            )
        if need.total_bytes <= room:
            return (room - need.total_bytes) // SPARE_SHARE
        wanted = f"learners={learners} needs {bytes_text(need.total_bytes)}"
        most = self.most(learners)
        if most:
            there = f"{self._there(room)}, enough for {most}"
            raise SettingError(f'{wanted}, {there}; use learners={most} or learners="auto"')
        one = self.need(1)
        if learners > 1:
            wanted = f"{wanted} and one alone {bytes_text(one.total_bytes)}"
        raise SettingError(f"{wanted}, {self._there(room)}; use {self._remedies(one, room)}")

    def check_more(self, learners: int, wanted: int) -> None:
        """Raise if there is no room for more learners, whose rows are already reserved."""
        if wanted <= learners:
            return
        room, more = self.bytes, self.need(wanted)
        needed, word = more.total_bytes, ""
        if not is_cpu(self.place):
            reserved = (wanted - learners) * more.rows_per_learner * more.row_bytes
            needed, word = needed - self.need(learners).total_bytes - reserved, " more"
        if needed > room:
            raise SettingError(
                f"learners={wanted} needs {bytes_text(needed)}{word}, {self._there(room)}; stay with {learners}"
            )

    def report(self, learners: int) -> str | None:
        if not isinstance(self.place, StreamDevice):
            return None
        return (
            f"{learners} learners: {bytes_text(self.place.used_bytes())} in use on {self.place.torch_device}, "
            f"{bytes_text(self.need(learners).total_bytes)} predicted for learners and central model"
        )

    @functools.cached_property
    def _saved(self) -> Sequence[int] | None:
        if is_cpu(self.place) or self.batch is None or has_lazy_modules(self.model):
            return None
        batch = self.batch
        if (parts := self.task.engine.accumulate) > 1:
            batch, _ = next(parts_of(batch, parts))
        return saved_bytes(self.model, batch, self.task.engine.precision)

    def _there(self, room: int) -> str:
        if is_cpu(self.place):
            return f"this machine has {bytes_text(room)} in all"
        device = self.place.torch_device if isinstance(self.place, StreamDevice) else self.place
        return f"{device} has {bytes_text(room)} free"

    def _remedies(self, one: MemoryNeed, room: int) -> str:
        if one.held_bytes > room or not one.activation_bytes:
            return "a smaller model"
        return _any_of(["a smaller batch_size"] + ([] if self.task.engine.offload else ["offload=True"]))


@contextlib.contextmanager
def out_of_memory_explained(learners: int, device: torch.device, offload: bool = False) -> Iterator[None]:
    """Turn an out-of-memory error of a round into one sentence that keeps nothing alive on the device."""
    # A failed learning task has changed no weights, no central model and no optimizer state: the training can be saved,
    # or continue with less.
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        # The frames of the failed task, and with them its activations, would live as long as the error does.
        traceback.clear_frames(error.__traceback__)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        can_offload = device.type == "cuda" and not offload
        remedies = ["fewer learners"] if learners > 1 else []
        remedies += ["a smaller batch_size"] + (["offload=True"] if can_offload else [])
        asked = _ASKED.search(str(error))
        what = f"memory ({asked[1]} more) on {device}" if asked else f"memory on {device}"
        raise DeviceMemoryError(
            f"learners={learners} ran out of {what}; the training can be saved, or continue with {_any_of(remedies)}"
        ) from None


def _any_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
