"""The batches of members: each has a stream of its own, and what lies in the same tensors is gathered at once."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, Subset

from bow.data import BatchStream, open_stream
from bow.data.stream import IndexedStream
from bow.data.tensors import TensorSamples, TensorStream
from bow.engines import Batches, Stacked
from bow.errors import SettingError
from bow.members.config import SweepConfig
from bow.members.variant import Variant

BLOCK_BYTES = 2**20
"""Batches of several rounds are gathered at once, of so many bytes, which stay in a core's cache."""

MAX_BLOCK = 64

ALIGNMENT = 64
"""Bytes at a multiple of which batches begin, as alone: by where they begin, matrix products round differently."""


def open_member(
    data: Any, among: Tensor | None, *, batch_size: int | None, epochs: int, steps: int | None, seed: int
) -> BatchStream:
    """A member's stream over the data, or over some samples of them, of which no copies are made.

    Raises:
        BowError: as `open_stream`.
    """
    stream = open_stream(data, batch_size=batch_size, epochs=epochs, steps=steps, seed=seed)
    if among is None:
        return stream
    if isinstance(stream, TensorStream):
        return stream.among(among, None if steps is not None else epochs)
    if isinstance(data, Dataset):
        some = Subset(data, among.tolist())
        return open_stream(some, batch_size=batch_size, epochs=epochs, steps=steps, seed=seed)
    raise SettingError(
        f"members with samples of their own need data that are tensors or a Dataset, got {type(data).__name__}"
    )


class MemberFeed:
    """Deals the batches of a round to the members on the rows.

    Members whose streams lie in the same tensors, with batches of one size, get theirs by one `index_select` per
    tensor for several rounds.
    """

    def __init__(self, rows: int) -> None:
        self.streams: list[BatchStream | None] = [None] * rows
        self._block: Any = None
        self._left = 0
        self._at = 0

    def put(self, row: int, stream: BatchStream | None) -> None:
        """Give a row a stream; None: it sits out."""
        self._return_block()
        self.streams[row] = stream

    def state_of(self, row: int) -> Mapping[str, Any]:
        """Where a row's stream is."""
        self._return_block()
        stream = self.streams[row]
        assert stream is not None
        return stream.state_dict()

    def deal(self) -> tuple[Batches, Sequence[tuple[int, int] | None]]:
        """The batches of a round; and by row how many samples it has and how many epochs it completes.

        None: the row sits out, or its stream has ended.
        """
        if self._left == 0:
            self._gather_block()
        if self._left:
            batches = Stacked(tree_map(lambda leaf: leaf[self._at], self._block))
            self._at, self._left = self._at + 1, self._left - 1
            return batches, [_advance(stream) for stream in self.streams]  # type: ignore[arg-type]
        return self._deal_each()

    def _deal_each(self) -> tuple[Batches, Sequence[tuple[int, int] | None]]:
        batches: list[Any] = []
        dealt: list[tuple[int, int] | None] = []
        shared: dict[int, Any] = {}  # members that share a stream share its batch
        for stream in self.streams:
            if stream is not None and id(stream) not in shared:
                shared[id(stream)] = stream.deal(1)
            deal = None if stream is None else shared[id(stream)]
            if deal is None:
                batches.append(None)
                dealt.append(None)
            else:
                batches.append(tree_map(lambda leaf: leaf[0], deal.batches) if deal.stacked else deal.batches[0])
                dealt.append((deal.num_samples, deal.epochs))
        return batches, dealt

    def _gather_block(self) -> None:
        """Gather batches of some rounds for all rows, where they lie in the same tensors and none is short."""
        self._block = None
        streams = [stream for stream in self.streams if isinstance(stream, TensorStream)]
        if len(streams) < len(self.streams) or len({id(stream) for stream in streams}) < len(streams):
            return
        first = streams[0]
        if any(s.samples is not first.samples or s.batch_size != first.batch_size for s in streams[1:]):
            return
        full = min(stream.full_batches_left() for stream in streams)
        size = len(streams) * first.batch_size
        rounds = int(min(full, MAX_BLOCK, max(1, BLOCK_BYTES // (size * first.samples.sample_bytes))))
        if rounds < 1:
            return
        indices = torch.stack([stream.coming(rounds).view(rounds, -1) for stream in streams], dim=1)
        indices = F.pad(indices, (0, -first.batch_size % samples_per_line(first.samples)))
        gathered = first.samples.gather(indices.reshape(-1))
        self._block = tree_map(
            lambda leaf: leaf.view(*indices.shape, *leaf.shape[1:])[:, :, : first.batch_size], gathered
        )
        self._left, self._at = rounds, 0

    def _return_block(self) -> None:
        """Forget what was gathered ahead; the streams are where the members are."""
        self._block, self._left = None, 0


def samples_per_line(samples: TensorSamples) -> int:
    """The least number of samples that in every tensor take a multiple of the alignment."""
    sizes = [sample.nbytes for sample in tree_leaves(samples.map(lambda leaf: leaf[0]))]
    return max(ALIGNMENT // math.gcd(ALIGNMENT, size) for size in sizes)


def _advance(stream: IndexedStream) -> tuple[int, int]:
    return stream.batch_size, stream.skip_batch()


class SharedSamples:
    """Streams of members over the same data, whose tensors are taken in once.

    With `batches="shared"` members that begin together have one stream, whose batches are read once.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        self._first: TensorStream | None = None
        self._beginning: dict[Any, BatchStream] = {}  # streams that nothing was dealt from

    def open(self, config: SweepConfig, variant: Variant) -> BatchStream:
        """The stream of a member that begins."""
        if config.batches == "own":
            return self._open(config, variant)
        key = (id(variant.train_on), config.batch_size_of(variant))
        if key not in self._beginning:
            self._beginning[key] = self._open(config, variant)
        return self._beginning[key]

    def dealt(self) -> None:
        """Members that begin from now on have streams of their own."""
        self._beginning.clear()

    def _open(self, config: SweepConfig, variant: Variant) -> BatchStream:
        train = config.train
        stream = open_member(
            self._data,
            None if variant.train_on is None else torch.as_tensor(variant.train_on),
            batch_size=config.batch_size_of(variant),
            epochs=train.epochs,
            steps=train.steps,
            seed=config.order_seed(variant),
        )
        if isinstance(stream, TensorStream):
            self._first = self._first or stream
            stream.samples = self._first.samples
        return stream
