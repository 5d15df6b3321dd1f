"""How batches come to the learners of a device with streams."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from bow.device import Event, StreamDevice
from bow.engine.base import Batches, Stacked
from bow.engine.task import Batch

_Key = tuple[Hashable, ...]


@dataclass
class Given:
    """What one learner learns from, on the device as soon as `Fed.copied` is.

    Attributes:
        leaves: of the batch; tensors lie on the device.
        spec: how they make up the batch.
    """

    leaves: list[Any]
    spec: TreeSpec

    @property
    def batch(self) -> Batch:
        """The batch."""
        return tree_unflatten(self.leaves, self.spec)

    @property
    def shape(self) -> Hashable:
        """What sets batches apart for a captured graph; None where they hold something that is no dense tensor."""
        if not self.leaves or not all(_is_dense(leaf) for leaf in self.leaves):
            return None
        return str(self.spec), *((leaf.shape, leaf.dtype) for leaf in self.leaves)


@dataclass
class Fed:
    """The batches of a round.

    Attributes:
        given: by learner; None: it sits out.
        copied: what a stream has to wait for before it reads them; None where the caller's stream has made them.
    """

    given: list[Given | None]
    copied: Event | None = None


@dataclass
class _Slot:
    """Memory that a round's batches go through."""

    copied: Event
    buffers: dict[_Key, tuple[Tensor, Tensor]] = field(default_factory=dict)
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
        self._device = device
        self.stream = device.stream("host to device")
        self._slots: dict[int, _Slot] = {}

    def put(self, slot: int, batches: Batches, learners: int) -> Fed:
        """Bring the batches of a round; the host can go on at once."""
        if slot not in self._slots:
            self._slots[slot] = _Slot(self._device.event(f"batches of slot {slot} are there"))
        used = self._slots[slot]
        used.kept = batches
        stacked = isinstance(batches, Stacked)
        flat = [tree_flatten(batches.value)] if isinstance(batches, Stacked) else _flattened(batches)
        brought = [None if each is None else self._bring(used, index, *each) for index, each in enumerate(flat)]
        copies = any(each is not None and each[1] for each in brought)
        if copies:
            self.stream.record(used.copied)
        given = [None if each is None else each[0] for each in brought]
        if stacked:
            (whole,) = given
            assert whole is not None
            given = [Given([leaf[learner] for leaf in whole.leaves], whole.spec) for learner in range(learners)]
        return Fed(given, used.copied if copies else None)

    def _bring(self, slot: _Slot, index: int, leaves: list[Any], spec: TreeSpec) -> tuple[Given, bool]:
        copies = False
        there = []
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and self._device.is_host(leaf):
                leaf, copies = self._copy(slot, (index, position), leaf), True
            there.append(leaf)
        return Given(there, spec), copies

    def _copy(self, slot: _Slot, place: _Key, leaf: Tensor) -> Tensor:
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


def _flattened(batches: Sequence[Batch | None]) -> list[tuple[list[Any], TreeSpec] | None]:
    return [None if batch is None else tree_flatten(batch) for batch in batches]


def _is_dense(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout is torch.strided
