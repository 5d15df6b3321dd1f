"""Streaming tensors in memory."""

from typing import Any

import torch

from bow.data.indexed import Indexed
from bow.data.order import SampleOrder
from bow.data.stream import Batch, IndexedStream
from bow.data.tensors import TensorSamples


class TensorStream(IndexedStream):
    """A stream over tensors in memory; full rounds are dealt stacked, with one `index_select` per tensor.

    Samples that reside on a device are dealt by their numbers.

    Args:
        samples: the tensors.
        batch_size: samples per learner and round.
        epochs: passes over the data before the stream ends; None: endless.
        seed: of the order.
    """

    def __init__(self, samples: TensorSamples, batch_size: int, epochs: int | None, seed: int) -> None:
        super().__init__(SampleOrder(len(samples), seed, samples.device), batch_size, epochs)
        self._samples = samples
        self._resides = False

    def reside(self, device: torch.device, room_bytes: int) -> bool:  # noqa: D102
        if self._samples.device != device:
            if self._samples.nbytes > room_bytes:
                return False
            self._samples = self._samples.to(device)
            self.order = SampleOrder(len(self._samples), self.order.seed, device)
        self._resides = True
        return True

    def full_round(self, start: int, learners: int) -> tuple[Any, bool]:  # noqa: D102
        indices = self.order.indices(start, learners * self.batch_size)
        if self._resides:
            return Indexed(self._samples, indices.view(learners, self.batch_size)), True
        return self._samples.gather_stacked(indices, learners), True

    def batch(self, start: int, count: int) -> Batch:  # noqa: D102
        indices = self.order.indices(start, count)
        return Indexed(self._samples, indices) if self._resides else self._samples.gather(indices)
