"""Memory budget of learners: check it before they are created, and explain rounds that run out of memory."""

import contextlib
import functools
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from bow.devices import StreamDevice
from bow.devices import memory as device_memory
from bow.engines.memory import MemoryNeed, Place, bytes_text, is_cpu, predict_memory, saved_bytes
from bow.engines.outcome import LearningConfig
from bow.engines.task import Batch, own_loss
from bow.errors import DeviceMemoryError, SettingError
from bow.replicas import OptimizerFactory, has_lazy_modules
from bow.sync import Synchroniser

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
            offload=self.task.offload,
            moving_average=self.moving_average,
        )

    def most(self, wanted: int) -> int:
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
            from bow.engines.accumulation import parts_of

            batch, _ = next(parts_of(batch, parts))
        return saved_bytes(self.model, batch, self.task.precision)

    def _there(self, room: int) -> str:
        if is_cpu(self.place):
            return f"this machine has {bytes_text(room)} in all"
        device = self.place.torch_device if isinstance(self.place, StreamDevice) else self.place
        return f"{device} has {bytes_text(room)} free"

    def _remedies(self, one: MemoryNeed, room: int) -> str:
        if one.held_bytes > room or not one.activation_bytes:
            return "a smaller model"
        return _any_of(["a smaller batch_size"] + ([] if self.task.offload else ["offload=True"]))


@contextlib.contextmanager
def out_of_memory_explained(learners: int, device: torch.device, offload: bool = False) -> Iterator[None]:
    """Turn an out-of-memory error of a round into one sentence that keeps nothing alive on the device."""
    # A failed learning task has changed no weights, no central model and no optimizer state: the training can be saved,
    # or continue with less.
    try:
        yield
    except RuntimeError as error:
        if not _is_out_of_memory(error):
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


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def _any_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
