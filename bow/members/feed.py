"""Batches of members: a stream per member, over data that are loaded once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.data import Dataset, Subset

from bow.data import Batch, BatchStream, open_stream
from bow.data.tensors import Indexed, TensorStream
from bow.errors import SettingError
from bow.members.config import SweepConfig
from bow.members.variant import Variant


class MemberFeed:
    """Deal batches to the members on the rows, for one round or for turns of several rounds."""

    def __init__(self, rows: int) -> None:
        self.streams: list[BatchStream | None] = [None] * rows  # None: the row is idle

    def most_turns(self) -> float:
        """Return how many batches a turn may have without passing an epoch's end; 0: run rounds."""
        streams = [stream for stream in self.streams if stream is not None]
        if not all(isinstance(stream, TensorStream) and not stream.resides for stream in streams):
            return 0
        return min(stream.full_batches_in_epoch() for stream in streams if isinstance(stream, TensorStream))

    def turns(self, count: int) -> list[Indexed | None]:
        """Return the next batches of each member without advancing its stream."""
        return [
            Indexed(stream.samples, stream.coming(count).view(count, -1)) if isinstance(stream, TensorStream) else None
            for stream in self.streams
        ]

    def skip(self, counts: Sequence[int]) -> list[int]:
        """Advance each row's stream by this many batches; return the epochs completed, by row."""
        most: dict[BatchStream | None, int] = {}  # a shared stream advances once
        for stream, count in zip(self.streams, counts, strict=True):
            most[stream] = max(count, most.get(stream, 0))
        epochs = {stream: stream.skip(count) for stream, count in most.items() if isinstance(stream, TensorStream)}
        return [epochs.get(stream, 0) for stream in self.streams]  # type: ignore[call-overload]

    def deal(self) -> tuple[list[Batch | None], Sequence[tuple[int, int] | None]]:
        """Return batches, and samples and completed epochs, by row; None: idle, or out of batches."""
        batches: list[Any] = []
        dealt: list[tuple[int, int] | None] = []
        shared: dict[int, Any] = {}  # members that share a stream share its batch
        for stream in self.streams:
            is_first = stream is not None and id(stream) not in shared
            if stream is not None and is_first:
                shared[id(stream)] = stream.deal(1)
            deal = None if stream is None else shared[id(stream)]
            if deal is None:
                batches.append(None)
                dealt.append(None)
            else:
                batch = tree_map(lambda leaf: leaf[0], deal.batches) if deal.stacked else deal.batches[0]
                batches.append(batch if is_first else tree_map_only(Tensor, Tensor.clone, batch))  # as steps may write
                dealt.append((deal.num_samples, deal.epochs))
        return batches, dealt


class SharedSamples:
    """Open streams over data loaded once; with `batches="shared"`, members that start together share a stream."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._first: TensorStream | None = None
        self._beginning: dict[Any, BatchStream] = {}  # streams not yet read from

    def open(self, config: SweepConfig, variant: Variant) -> BatchStream:
        if config.batches == "own":
            return self._open(config, variant)
        key = (id(variant.train_on), config.of(variant).batch_size)
        if key not in self._beginning:
            self._beginning[key] = self._open(config, variant)
        return self._beginning[key]

    def dealt(self) -> None:
        """Stop sharing the open streams with members that start later."""
        self._beginning.clear()

    def _open(self, config: SweepConfig, variant: Variant) -> BatchStream:
        """Open a stream over the data or the member's samples, without copying."""
        settings, data = config.of(variant).stream_settings, self._data
        if config.batches == "shared":
            settings["seed"] = config.train.seed
        stream = open_stream(data, **settings)
        if variant.train_on is not None:
            among = torch.as_tensor(variant.train_on)
            if isinstance(stream, TensorStream):
                stream = stream.among(among, settings["epochs"] if settings["steps"] is None else None)
            elif isinstance(data, Dataset):
                return open_stream(Subset(data, among.tolist()), **settings)
            else:
                kind = type(data).__name__
                raise SettingError(f"train_on and validate_on need tensors or a Dataset as data, got {kind}")
        if isinstance(stream, TensorStream):
            self._first = self._first or stream
            stream.samples = self._first.samples
        return stream
