"""How batches come to the learners of a device with streams."""

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from bow.data import Indexed
from bow.devices import Event, StreamDevice
from bow.engines.outcome import Batches, Stacked
from bow.engines.task import Batch

MOST_BUFFERS = 256
"""Batches of many shapes would take memory for each; beyond so many a slot begins anew."""

_Place = tuple[Hashable, ...]


@dataclass(frozen=True)
class Given:
    """What one learner learns from, or all of them.

    Attributes:
        leaves: of the batch; tensors with the learners first where it is that of all.
        spec: how they make up the batch.
        shape: what sets one learner's batches apart for a captured graph; None where they hold something that is no
            dense tensor.
    """

    leaves: Sequence[Any]
    spec: TreeSpec
    shape: Hashable

    @classmethod
    def of(cls, batch: Batch, *, stacked: bool = False) -> "Given":
        """Take a batch apart."""
        leaves, spec, structure = _flattened(batch)
        if not leaves or not all(isinstance(leaf, Tensor) and leaf.layout is torch.strided for leaf in leaves):
            return cls(leaves, spec, None)
        return cls(leaves, spec, (structure, *((leaf.shape[stacked:], leaf.dtype) for leaf in leaves)))

    @property
    def batch(self) -> Batch:
        """The batch."""
        return tree_unflatten(self.leaves, self.spec)

    def with_leaves(self, leaves: Sequence[Any]) -> "Given":
        """The same kind of batch, of other leaves."""
        return Given(leaves, self.spec, self.shape)

    def of_learner(self, learner: int) -> "Given":
        """One learner's batch out of that of all."""
        return self.with_leaves([leaf[learner] for leaf in self.leaves])


class Fed:
    """The batches of a round, on the device as soon as `copied` is.

    Args:
        batches: by learner, None where it sits out; or those of all as one.
        learners: how many.
        copied: what a stream has to wait for before it reads them; None where the caller's stream has made them.
    """

    def __init__(self, batches: Given | Sequence[Given | None], learners: int, copied: Event | None = None) -> None:
        self.stacked = batches if isinstance(batches, Given) else None
        self.active = [True] * learners if isinstance(batches, Given) else [each is not None for each in batches]
        self.copied = copied
        self._batches = batches

    @functools.cached_property
    def given(self) -> Sequence[Given | None]:
        """By learner; a round that takes all of them as one never asks."""
        if isinstance(self._batches, Given):
            return [self._batches.of_learner(learner) for learner in range(len(self.active))]
        return self._batches


@dataclass
class _Slot:
    """Memory that a round's batches go through."""

    copied: Event
    buffers: dict[_Place, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Page-locked, and on the device."""
    kept: Any = None
    """Batches that lie on the device already and must live until they have been read."""


class Feed:
    """Brings batches to a device while it computes.

    Batches of the host go through page-locked memory on a stream of their own, those that lie on the device are taken
    from where they are. Every round has a slot; who takes a slot again has seen the round before end.

    Args:
        device: where to.
    """

    def __init__(self, device: StreamDevice) -> None:
        self.stream = device.stream("host to device")
        self._device = device
        self._slots: dict[int, _Slot] = {}

    def put(self, slot: int, batches: Batches, learners: int) -> Fed:
        """Bring the batches of a round; the host can go on at once."""
        if slot not in self._slots:
            self._slots[slot] = _Slot(self._device.event(f"batches of slot {slot} are there"))
        used = self._slots[slot]
        if len(used.buffers) > MOST_BUFFERS:
            used.buffers.clear()
        used.kept = batches
        if isinstance(batches, Stacked):
            whole, copies = self._bring(used, 0, Given.of(batches.value, stacked=True))
            return Fed(whole, learners, self._copied(used) if copies else None)
        brought = [None if each is None else self._bring(used, j, Given.of(each)) for j, each in enumerate(batches)]
        copies = any(each is not None and each[1] for each in brought)
        given = [None if each is None else each[0] for each in brought]
        return Fed(given, learners, self._copied(used) if copies else None)

    def _copied(self, slot: _Slot) -> Event:
        self.stream.record(slot.copied)
        return slot.copied

    def _bring(self, slot: _Slot, index: int, given: Given) -> tuple[Given, bool]:
        """A batch on the device, and whether it has to be copied there."""
        there = [
            self._copy(slot, (index, position), leaf)
            if isinstance(leaf, Tensor) and self._device.is_host(leaf)
            else leaf
            for position, leaf in enumerate(given.leaves)
        ]
        return given.with_leaves(there), any(new is not old for new, old in zip(there, given.leaves, strict=True))

    def _copy(self, slot: _Slot, place: _Place, leaf: Tensor) -> Tensor:
        key = (*place, leaf.shape, leaf.dtype)
        if key not in slot.buffers:
            # A last batch is smaller: what it takes is made once more and kept.
            with self._device.on(self.stream):
                on_device = torch.empty(leaf.shape, dtype=leaf.dtype, device=self._device.torch_device)
            slot.buffers[key] = self._device.pinned(leaf.shape, leaf.dtype), on_device
        pinned, on_device = slot.buffers[key]
        self._device.write_host(pinned, leaf)
        with self._device.on(self.stream):
            on_device.copy_(pinned, non_blocking=True)
        return on_device


def _flattened(batch: Batch) -> tuple[Sequence[Any], TreeSpec, Hashable]:
    """A batch's leaves, how they make it up, and that as something to compare quickly."""
    if type(batch) is tuple and all(type(leaf) is Tensor for leaf in batch):  # almost always, and in no time
        return batch, _spec_of_tuple(len(batch)), len(batch)
    leaves, spec = tree_flatten(batch)
    return leaves, spec, batch.samples if isinstance(batch, Indexed) else str(spec)


@functools.cache
def _spec_of_tuple(length: int) -> TreeSpec:
    return tree_flatten((0,) * length)[1]
