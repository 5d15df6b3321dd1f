"""Batches on their way to a device with streams, and results of learning tasks on their way back."""

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bow.data import Batches, Stacked
from bow.devices import Event, StreamDevice
from bow.engines.batches import FlatBatch
from bow.engines.outcome import Outcome
from bow.errors import LossError

MOST_BUFFERS = 256  # of a slot; with more, after batches of many shapes, they are dropped

_Key = tuple[Hashable, ...]


class DeviceBatches:
    """The batches of a round, on the device once `copied` has happened."""

    def __init__(
        self, batches: FlatBatch | Sequence[FlatBatch | None], learners: int, copied: Event | None = None
    ) -> None:
        self.stacked = batches if isinstance(batches, FlatBatch) else None
        self.active = [True] * learners if isinstance(batches, FlatBatch) else [each is not None for each in batches]
        self.copied = copied
        self._batches = batches

    @functools.cached_property
    def by_learner(self) -> Sequence[FlatBatch | None]:
        """Batches by learner; lazy, since a round on stacked batches does not need them."""
        if isinstance(self._batches, FlatBatch):
            return [self._batches.of_learner(learner) for learner in range(len(self.active))]
        return self._batches


@dataclass
class _FeedSlot:
    """Memory for the batches of a round."""

    copied: Event
    buffers: dict[_Key, tuple[Tensor, Tensor]] = field(default_factory=dict)  # page-locked, and on the device
    kept: Any = None  # batches that are on the device already and must live until they have been read


class Feed:
    """Copy batches to a device while it computes."""

    # Batches of the host go through page-locked memory on a separate stream, batches on the device are used in place.
    # Every round has a slot, which is reused only after the host has seen the earlier round end.

    def __init__(self, device: StreamDevice) -> None:
        self.stream = device.stream("host to device")
        self._device = device
        self._slots: dict[int, _FeedSlot] = {}

    def put(self, slot: int, batches: Batches, learners: int) -> DeviceBatches:
        """Issue the copies of a round's batches; the host does not wait."""
        if slot not in self._slots:
            self._slots[slot] = _FeedSlot(self._device.event(f"batches of slot {slot} are ready"))
        used = self._slots[slot]
        if len(used.buffers) > MOST_BUFFERS:
            used.buffers.clear()
        used.kept = batches
        if isinstance(batches, Stacked):
            whole, copies = self._bring(used, 0, FlatBatch.of(batches.value, stacked=True))
            return DeviceBatches(whole, learners, self._copied(used) if copies else None)
        brought = [None if each is None else self._bring(used, j, FlatBatch.of(each)) for j, each in enumerate(batches)]
        copies = any(each is not None and each[1] for each in brought)
        there = [None if each is None else each[0] for each in brought]
        return DeviceBatches(there, learners, self._copied(used) if copies else None)

    def _copied(self, slot: _FeedSlot) -> Event:
        self.stream.record(slot.copied)
        return slot.copied

    def _bring(self, slot: _FeedSlot, index: int, batch: FlatBatch) -> tuple[FlatBatch, bool]:
        """Return a batch on the device, and whether it is copied there."""
        there = [
            self._copy(slot, (index, position), leaf)
            if isinstance(leaf, Tensor) and self._device.is_host(leaf)
            else leaf
            for position, leaf in enumerate(batch.leaves)
        ]
        return batch.with_leaves(there), any(new is not old for new, old in zip(there, batch.leaves, strict=True))

    def _copy(self, slot: _FeedSlot, place: _Key, leaf: Tensor) -> Tensor:
        key = (*place, leaf.shape, leaf.dtype)
        if key not in slot.buffers:
            # Another shape, such as that of a smaller last batch, gets its own buffers.
            with self._device.on(self.stream):
                on_device = torch.empty(leaf.shape, dtype=leaf.dtype, device=self._device.torch_device)
            slot.buffers[key] = self._device.pinned(leaf.shape, leaf.dtype), on_device
        pinned, on_device = slot.buffers[key]
        self._device.write_host(pinned, leaf)
        with self._device.on(self.stream):
            on_device.copy_(pinned, non_blocking=True)
        return on_device


SLOTS = 8  # rounds in flight: how far the host runs ahead of the device, and how late it sees that a learner diverged
LOSS, FINITE, METRICS = 0, 1, 2  # columns of a learner's row of results; metrics come last


class Results:
    """Rows `[loss, finite, metrics...]` of every learner, for the last rounds."""

    def __init__(self, device: StreamDevice, learners: int, metrics: Sequence[str], dtype: torch.dtype) -> None:
        self._device = device
        self.metrics = list(metrics)
        shape = (learners, METRICS + len(self.metrics))
        self._rows = torch.zeros(SLOTS, *shape, dtype=dtype, device=device.torch_device)
        # Views that the learners of a round write, by slot; and the same by slot and learner.
        self.rows = [self._rows.data[slot] for slot in range(SLOTS)]
        self.rows_of_learners = [[rows.data[learner] for learner in range(learners)] for rows in self.rows]
        self._pinned = [device.pinned(shape, dtype) for _ in range(SLOTS)]

    def empty(self, rounds: int) -> Float[Tensor, "rounds learners values"]:
        """Allocate the caller's results of several rounds, filled with NaN for missing batches."""
        shape = (rounds, *self._rows.shape[1:])
        return torch.full(shape, torch.nan, dtype=self._rows.dtype, device=self._rows.device)

    def check(self, metrics: Sequence[str]) -> None:
        if metrics != self.metrics:
            raise LossError(
                f"the step returns metrics {', '.join(metrics) or 'none'} and returned "
                f"{', '.join(self.metrics) or 'none'} before; return the same in the same order every time"
            )

    def collect(self, slot: int, into: Float[Tensor, "learners values"]) -> None:
        """Copy a round's results to the caller's memory and to the host, on the current stream."""
        into.copy_(self.rows[slot])
        self._pinned[slot].copy_(self.rows[slot], non_blocking=True)

    def on_host(self, slot: int) -> list[list[float]]:
        return self._device.read_host(self._pinned[slot])

    def outcomes(
        self,
        made: Float[Tensor, "rounds learners values"],
        active: Sequence[list[bool]],
        taken_by: Sequence[Sequence[int] | None],
    ) -> list[Outcome]:
        losses, finite = made[..., LOSS].unbind(), (made[..., FINITE] != 0).unbind()
        metrics = {name: made[..., METRICS + i].to(torch.float32).unbind() for i, name in enumerate(self.metrics)}
        return [
            Outcome(losses[t], finite[t], there, {name: metric[t] for name, metric in metrics.items()}, taken_by[t])
            for t, there in enumerate(active)
        ]

    def outcome(self, rows: Float[Tensor, "learners values"], active: list[bool]) -> Outcome:
        return self.outcomes(rows.unsqueeze(0), [active], [None])[0]
