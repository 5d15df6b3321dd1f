"""Take a round's batches from an iterator, check them, and move them to the learners' device."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.data import BatchStream
from bow.devices import StreamDevice
from bow.engines import Batch, Loop, Stacked
from bow.engines.eager import batch_of
from bow.errors import SettingError
from bow.graph.learning_step import LearningStep
from bow.graph.outside import OutsideTensors
from bow.replicas import LearnerGroup
from bow.training.checks import check_has_values, check_stacked

DATA_SHARE = 4  # samples are stored on a device if they take at most 1/DATA_SHARE of its free memory
MAX_BYTES_TOGETHER = 2**28  # a group of rounds is complete once its batches have this many bytes


class RoundBatches:
    """Prepares the batches of rounds for the engine's loop."""

    def __init__(self, group: LearnerGroup, loop: Loop, streams: StreamDevice | None, *, checks_outside: bool) -> None:
        self._group = group
        self._loop = loop
        self._streams = streams
        self._is_first = True
        self._checks_outside = checks_outside

    def prepare(self, batches: Any) -> Stacked | Sequence[Batch | None]:
        """Check a round's batches, and move them to the device unless the engine does that itself."""
        prepared = self._on_device(batches)
        if self._is_first:
            check_has_values(prepared.value if isinstance(prepared, Stacked) else prepared, "a round")
            self._is_first = False
        if self._checks_outside:
            self._check_outside(prepared)
        return prepared

    def take(self, batches: Iterator[Batch], limit: int) -> list[list[Batch | None]]:
        """Return the batches of up to `limit` rounds, fewer if they run out or are large."""
        taken: list[list[Batch | None]] = []
        room = MAX_BYTES_TOGETHER
        while len(taken) < limit and room > 0 and (batch := list(itertools.islice(batches, len(self._group)))):
            taken.append([*batch, *[None] * (len(self._group) - len(batch))])
            room -= num_bytes(batch) if limit > 1 else 0
        return taken

    def reside(self, stream: BatchStream) -> bool:
        """Store a stream's samples on the device, if they are tensors and take at most a quarter of its free memory."""
        if self._streams is None or not self._loop.brings_batches:
            return False
        return stream.reside(self._group.device, self._streams.free_bytes() // DATA_SHARE)

    def _on_device(self, batches: Any) -> Stacked | Sequence[Batch | None]:
        learners = len(self._group)
        if isinstance(batches, list):
            if len(batches) != learners:
                raise SettingError(
                    f"a round of {learners} learners needs {learners} batches, got {len(batches)}; "
                    "pass None for a learner that sits out"
                )
            return [None if batch is None else self._to_device(batch) for batch in batches]
        if isinstance(batches, Stacked):
            return Stacked(self._to_device(batches.value))
        check_stacked(batches, learners)
        return Stacked(self._to_device(batches))

    def _to_device(self, batch: Batch) -> Batch:
        device = self._group.device
        if device.type == "cpu" or self._loop.brings_batches:
            return batch
        return tree_map_only(Tensor, lambda t: t.to(device, non_blocking=True), batch)

    def _check_outside(self, batches: Stacked | Sequence[Batch | None]) -> None:
        """Reject a step that depends on trainable tensors outside the model, before running compiled code."""
        batch = batch_of(batches, 0)
        if batch is None:
            return
        module, step = self._group.learners[0].module, self._loop.settings.step
        if OutsideTensors(step, module).may_matter:
            tensors = tree_map_only(Tensor, lambda t: t.to(self._group.device, copy=True), batch)
            with torch.random.fork_rng(devices=[]):
                LearningStep(module, step).run(dict(module.named_parameters()), dict(module.named_buffers()), tensors)
        self._checks_outside = False


def num_bytes(batches: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(batches) if isinstance(leaf, Tensor))
