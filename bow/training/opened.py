"""A training's data, of which one batch has been looked at before it is known how many learners there will be."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bow.data import Batch, BatchStream, Deal, open_stream
from bow.data.stream import IndexedStream
from bow.engine import Batches, Stacked
from bow.engine.eager import batch_of
from bow.errors import DataError
from bow.seeds import derive_seed

TRIALS = 2
"""Tells the seed of the batches of trials from those of training."""


class Opened:
    """A stream, and the batch that was looked at first.

    Samples that are reached by their number are read again. From a loader, or an iterable that may not begin anew, the
    batch is kept, and is the first one of the training.

    Args:
        data: as in `open_stream`.
        batch_size: as there.
        epochs: as there.
        steps: as there.
        seed: as there.

    Raises:
        DataError: as `open_stream`, and where there is no batch at all.
    """

    def __init__(self, data: Any, *, batch_size: int, epochs: int, steps: int | None, seed: int) -> None:
        self.stream = open_stream(data, batch_size=batch_size, epochs=epochs, steps=steps, seed=seed)
        self._data = data
        self._seed = seed
        beginning = self.stream.state_dict()
        deal = self.stream.deal(1)
        if deal is None:
            raise DataError("the data gave no batch, got an empty stream; give at least one sample")
        self.example: Batch = first_batch(deal)
        """What one learning task gets."""
        self._kept: Deal | None = deal
        if isinstance(self.stream, IndexedStream):
            self.stream.load_state_dict(beginning)
            self._kept = None

    @property
    def batch_size(self) -> int:
        """Samples of a batch; of the first one, where a loader decides it batch by batch."""
        return self.stream.batch_size or num_samples(self.example)

    def rounds(self, learners: int) -> int | None:
        """Rounds of the whole training with so many learners; None where that is unknown."""
        batches = self.stream.rounds_left(1)
        return None if batches is None else math.ceil((batches + (self._kept is not None)) / learners)

    def first(self, learners: int) -> Deal | None:
        """The batches of the first round."""
        kept, self._kept = self._kept, None
        if kept is None:
            return self.stream.deal(learners)
        batches = list(kept.batches)
        rest = self.stream.deal(learners - 1) if learners > 1 else None
        others = [None] * (learners - 1) if rest is None else list(rest.batches)
        more = 0 if rest is None else rest.num_samples
        return Deal([*batches, *others], False, kept.num_samples + more, kept.epochs if rest is None else rest.epochs)

    def feed(self) -> "TrialFeed":
        """Batches for trials, which take nothing from the training."""
        if not isinstance(self.stream, IndexedStream):
            return TrialFeed(None, self.example)
        seed = derive_seed(self._seed, TRIALS)
        endless = open_stream(self._data, batch_size=self.stream.batch_size, steps=1, seed=seed)
        return TrialFeed(endless, self.example)


class TrialFeed:
    """Endless batches.

    Args:
        stream: over the training's data, in another order; None: a batch is given again and again.
        example: that batch.
    """

    def __init__(self, stream: BatchStream | None, example: Batch) -> None:
        self.stream = stream
        self._example = example
        self._num_samples = num_samples(example)

    def deal(self, learners: int) -> tuple[Batches, int]:
        """The batches of a round, and how many samples they have."""
        if self.stream is None:
            return [self._example] * learners, learners * self._num_samples
        deal = self.stream.deal(learners)
        assert deal is not None
        return Stacked(deal.batches) if deal.stacked else deal.batches, deal.num_samples


def first_batch(deal: Deal) -> Batch:
    """The first learner's batch."""
    return tree_map(lambda t: t[0], deal.batches) if deal.stacked else deal.batches[0]


def num_samples(batch: Batch) -> int:
    """Samples in a batch, the first dimension of its first tensor; 1 where it has none."""
    leaves = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0)
    return next(map(len, leaves), 1)


def dealt_again(deals: Sequence[Deal], learners: int) -> list[Deal]:
    """The batches of some rounds for another number of learners; in the last round some may sit out."""
    dealt = (Stacked(deal.batches) if deal.stacked else deal.batches for deal in deals)
    counts = [tree_leaves(deal.batches)[0].shape[0] if deal.stacked else len(deal.batches) for deal in deals]
    each = [batch_of(batches, j) for batches, count in zip(dealt, counts, strict=True) for j in range(count)]
    batches = [batch for batch in each if batch is not None]
    again = []
    for start in range(0, len(batches), learners):
        taken = batches[start : start + learners]
        is_last = start + learners >= len(batches)
        epochs = deals[-1].epochs if is_last else deals[0].epochs
        padded = taken + [None] * (learners - len(taken))
        again.append(Deal(padded, False, sum(map(num_samples, taken)), epochs))
    return again
