"""A training's data stream with an example batch, and the batches of timed trials."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.data import Batch, BatchStream, Deal, batch_length, open_stream
from bow.data.stream import IndexedStream
from bow.engines import Batches, Stacked
from bow.engines.eager import batch_of
from bow.errors import DataError
from bow.observe.text import learners_text
from bow.seeds import derive_seed

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
        return batches_in(deal), deal.num_samples


def check_round(stream: BatchStream, learners: int) -> None:
    samples, batch = stream.samples_per_epoch, stream.batch_size
    if samples is not None and batch is not None and samples < batch * learners:
        raise DataError(
            f"the data have {samples} samples and one round of {learners_text(learners)} with batch_size={batch} takes "
            f"{batch * learners}; use {'fewer learners, ' if learners > 1 else ''}smaller batches or more data"
        )


def copied(batch: Batch) -> Batch:
    return tree_map_only(Tensor, Tensor.clone, batch)


def batches_in(deal: Deal) -> Batches:
    return Stacked(deal.batches) if deal.stacked else deal.batches


def redistribute(deals: Sequence[Deal], learners: int) -> list[Deal]:
    """Redistribute the batches of some rounds over another number of learners; some may sit out of the last round."""
    batches = [batch for deal in deals for batch in batches_of(deal)]
    rounds = [batches[start : start + learners] for start in range(0, len(batches), learners)]
    again = [
        Deal([*own, *[None] * (learners - len(own))], False, sum(map(batch_length, own)), deals[0].epochs)
        for own in rounds
    ]
    return [*again[:-1], again[-1]._replace(epochs=deals[-1].epochs)]


def batches_of(deal: Deal) -> list[Batch]:
    """Return the batches of a round, without learners that sit out."""
    if not deal.stacked:
        return [batch for batch in deal.batches if batch is not None]
    count = len(tree_leaves(deal.batches)[0])
    return [batch_of(Stacked(deal.batches), j) for j in range(count)]
