"""Batches of a training: its data stream, those of timed trials, and those of a round on their way to the device."""

import copy
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.data import Batch, Batches, BatchStream, Deal, Indexed, Stacked, batch_length, batch_of, open_stream
from bow.data.stream import IndexedStream
from bow.devices import StreamDevice
from bow.engines import Loop, Loss, Step
from bow.engines.batches import gathered
from bow.engines.task import parts_of
from bow.errors import BowError, DataError, SettingError
from bow.graph.learning_step import LearningStep
from bow.graph.outside import OutsideTensors
from bow.observe.text import learners_text
from bow.replicas import LearnerGroup
from bow.seeds import derive_seed
from bow.training.checks import check_first_batch, check_has_values, check_stacked

TRIALS = 2  # derives the seed of the trials' batches


class DataSource:
    """A data stream and its first batch, which is peeked before the number of learners is known."""

    def __init__(self, data: Any, *, batch_size: int | None, epochs: int, steps: int | None, seed: int) -> None:
        self.stream = open_stream(data, batch_size=batch_size, epochs=epochs, steps=steps, seed=seed)
        check_round(self.stream, 1)
        self._data = data
        self._seed = seed
        self.example: Batch = copied(self.stream.peek())

    @property
    def batch_size(self) -> int:
        """Samples per batch; those of the first one where a loader decides batch by batch."""
        return self.stream.batch_size or batch_length(self.example)

    @property
    def usual_batch(self) -> int | None:
        """First dimension of every full batch; None where a loader counts something else there."""
        return self.stream.batch_size if self.stream.batch_size == batch_length(self.example) else None

    def feed(self) -> "TrialFeed":
        if not isinstance(self.stream, IndexedStream):
            return TrialFeed(None, self.example)
        seed = derive_seed(self._seed, TRIALS)
        endless = open_stream(self._data, batch_size=self.stream.batch_size, steps=1, seed=seed)
        return TrialFeed(endless, self.example)


class TrialFeed:
    """Endless batches for trials: from the data in another order, or copies of the example."""

    def __init__(self, stream: BatchStream | None, example: Batch) -> None:
        self.stream = stream
        self._example = example
        self._num_samples = batch_length(example)

    def deal(self, learners: int) -> tuple[Batches, int]:
        if self.stream is None:  # copies: a step may change its batch in place
            return [copied(self._example) for _ in range(learners)], learners * self._num_samples
        deal = self.stream.deal(learners)
        assert deal is not None
        return deal.batches, deal.num_samples


def check_round(stream: BatchStream, learners: int) -> None:
    samples, batch = stream.samples_per_epoch, stream.batch_size
    if samples is not None and batch is not None and samples < batch * learners:
        raise DataError(
            f"the data have {samples} samples and one round of {learners_text(learners)} with batch_size={batch} takes "
            f"{batch * learners}; use {'fewer learners, ' if learners > 1 else ''}smaller batches or more data"
        )


def check_last_batch(stream: BatchStream, parts: int, template: nn.Module, loss: Loss | None, step: Step) -> None:
    """Refuse a last batch, or part of it, of one sample, over which the model normalises: it fails at the end."""
    if not isinstance(stream, IndexedStream) or stream.last_batch is None:
        return
    if stream.last_batch // min(parts, stream.last_batch) != 1:
        return
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in template.modules()):
        return
    try:  # on a copy: a model may initialise itself by the first batch in training mode
        check_first_batch(copy.deepcopy(template), stream.batch(0, 1), loss, step, most_bad=1.0, is_training=True)
    except BowError as error:
        if "more than 1 value per channel" in str(error):
            which = "the last batch" if parts == 1 else f"with accumulate={parts} a part of the last batch"
            raise DataError(
                f"with batch_size={stream.batch_size}, {which} of all epochs has one sample, over which the model's "
                "batch norm cannot normalise; use another batch_size or number of epochs, or leave a sample out"
            ) from error


def copied(batch: Batch) -> Batch:
    return tree_map_only(Tensor, Tensor.clone, batch)


def redistribute(deals: Sequence[Deal], learners: int) -> list[Deal]:
    """Redistribute the batches of some rounds over another number of learners; some may sit out of the last round."""
    batches = [batch for deal in deals for batch in batches_of(deal)]
    rounds = [batches[start : start + learners] for start in range(0, len(batches), learners)]
    again = []
    for own in rounds:
        sizes, missing = list(map(batch_length, own)), learners - len(own)
        again.append(Deal([*own, *[None] * missing], [*sizes, *[0] * missing], sum(sizes), deals[0].epochs))
    return [*again[:-1], again[-1]._replace(epochs=deals[-1].epochs)]


def batches_of(deal: Deal) -> list[Batch]:
    if not isinstance(deal.batches, Stacked):
        return [batch for batch in deal.batches if batch is not None]
    return [batch_of(deal.batches, j) for j in range(len(tree_leaves(deal.batches.value)[0]))]


DATA_SHARE = 4  # samples are stored on a device if they take at most 1/DATA_SHARE of its free memory
MAX_BYTES_TOGETHER = 2**28  # a group of rounds is complete once its batches have this many bytes


class RoundBatches:
    """Prepares the batches of rounds for the engine's loop."""

    def __init__(self, group: LearnerGroup, loop: Loop, streams: StreamDevice | None, engine: str) -> None:
        self._group = group
        self._loop = loop
        self._streams = streams
        self._is_first = True
        # Other engines check the autograd graph of their first task.
        self._checks_outside = engine == "fused" or loop.settings.engine.compile or loop.settings.engine.accumulate > 1

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
        """Let a stream of tensors deal indices of samples on the device; on a GPU they take at most a quarter of it."""
        if not self._loop.brings_batches:
            return False
        room_bytes = sys.maxsize if self._streams is None else self._streams.free_bytes() // DATA_SHARE
        self._loop.takes_indices = stream.reside(self._group.device, room_bytes)
        return self._loop.takes_indices

    def _on_device(self, batches: Any) -> Stacked | Sequence[Batch | None]:
        learners = len(self._group)
        if isinstance(batches, list):
            if len(batches) != learners:
                raise SettingError(
                    f"a round of {learners} learners needs {learners} batches, got {len(batches)}; "
                    "pass None for a learner that sits out"
                )
            return [None if batch is None else self._to_device(batch) for batch in batches]
        if not isinstance(batches, Stacked):
            check_stacked(batches, learners)
            batches = Stacked(batches)
        return Stacked(self._to_device(batches.value))

    def _to_device(self, batch: Batch) -> Batch:
        device = self._group.device
        if device.type == "cpu" or self._loop.brings_batches:
            return batch
        return tree_map_only(Tensor, lambda t: t.to(device, non_blocking=True), batch)

    def _check_outside(self, batches: Stacked | Sequence[Batch | None]) -> None:
        batch = batch_of(gathered(batches), 0)
        if batch is None:
            return
        module, settings = self._group.learners[0].module, self._loop.settings
        outside = OutsideTensors(settings.step, module)
        if outside.may_matter or outside.is_held:
            part, _ = next(parts_of(batch, settings.engine.accumulate))  # a whole batch might not fit
            tensors = tree_map_only(Tensor, lambda t: t.to(self._group.device, copy=True), part)
            with torch.random.fork_rng(devices=[]):
                step = LearningStep(module, settings.step)
                step.run(dict(module.named_parameters()), dict(module.named_buffers()), tensors)
        self._checks_outside = False


def num_bytes(batches: Any) -> int:
    if isinstance(batches, Indexed):  # for speed alone
        return batches.indices.nbytes
    leaves = tree_leaves(batches.value if isinstance(batches, Stacked) else batches)
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
