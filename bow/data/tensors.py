"""Samples in the form of tensors in memory, and the stream over them."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils._pytree import TreeSpec, register_pytree_node, tree_flatten, tree_unflatten

from bow.data.stream import Batch, IndexedStream, SampleOrder
from bow.errors import DataError


class TensorSamples:
    """A pytree of tensors whose first dimension is the sample dimension."""

    def __init__(self, data: Any) -> None:
        leaves, self._spec = tree_flatten(data)
        self._is_tuple = type(data) is tuple and all(isinstance(each, Tensor) for each in data)
        _check_leaves(leaves)
        self.leaves: list[Tensor] = [leaf.detach() for leaf in leaves]  # in pytree order
        self.device: torch.device = leaves[0].device

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __repr__(self) -> str:  # deterministic: a checkpoint names what was captured of it
        return f"TensorSamples({', '.join(f'{leaf.dtype} {list(leaf.shape)}' for leaf in self.leaves)})"

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves)

    def to(self, device: torch.device) -> "TensorSamples":
        return TensorSamples(self.map(lambda leaf: leaf.to(device)))

    def map(self, function: Callable[[Tensor], Tensor]) -> Any:
        return self._tree([function(leaf) for leaf in self.leaves])

    def gather(self, indices: Tensor) -> Batch:
        return self.map(lambda leaf: leaf.index_select(0, indices))

    def gather_stacked(self, indices: Tensor, learners: int) -> Batch:
        shape = (learners, len(indices) // learners)
        return self.map(lambda leaf: leaf.index_select(0, indices).view(*shape, *leaf.shape[1:]))

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Iterate over all samples in order, as copies: a model may modify its input in place."""
        for pieces in zip(*(torch.split(leaf, batch_size) for leaf in self.leaves), strict=True):
            yield self._tree([piece.clone() for piece in pieces])

    def _tree(self, leaves: list[Tensor]) -> Batch:
        spec: TreeSpec = self._spec
        return tuple(leaves) if self._is_tuple else tree_unflatten(leaves, spec)  # slower than a gather


def _check_leaves(leaves: list[Tensor]) -> None:
    if any(leaf.dim() == 0 for leaf in leaves):
        raise DataError("every tensor of the data needs a sample dimension, got one with shape []; add the dimension")
    lengths = [len(leaf) for leaf in leaves]
    if len(set(lengths)) > 1:
        raise DataError(
            f"the tensors of the data must have equal first dimensions, got {lengths}; give one entry per sample"
        )
    if lengths[0] == 0:
        raise DataError("the data have 0 samples; give at least one")
    devices = sorted({str(leaf.device) for leaf in leaves})
    if len(devices) > 1:
        raise DataError(f"the tensors of the data must be on one device, got {', '.join(devices)}; move them together")


# `gather(source, indices, out)`: `out[i] = source[indices[i]]`
Gather: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]


class Indexed:
    """A batch still to be gathered: a pytree with the index tensor as its leaf. Captured graphs start with it."""

    def __init__(self, samples: TensorSamples, indices: Int64[Tensor, "*shape"]) -> None:
        self.samples = samples
        self.indices = indices

    def gather(self, gather: Gather) -> Any:
        """Return the samples, as tensors `[*shape of the indices, ...]`."""
        numbers = self.indices.reshape(-1)

        def take(source: Tensor) -> Tensor:
            out = torch.empty(len(numbers), *source.shape[1:], dtype=source.dtype, device=source.device)
            gather(source, numbers, out)
            return out.view(*self.indices.shape, *source.shape[1:])

        return self.samples.map(take)


register_pytree_node(
    Indexed,
    lambda batch: ([batch.indices], batch.samples),
    lambda leaves, samples: Indexed(samples, *leaves),
    serialized_type_name="bow.data.Indexed",
)


class TensorStream(IndexedStream):
    """A stream over tensors in memory; full rounds are stacked, with one `index_select` per tensor."""

    def __init__(self, samples: TensorSamples, batch_size: int, epochs: int | None, seed: int) -> None:
        super().__init__(SampleOrder(len(samples), seed, samples.device), batch_size, epochs)
        self.samples = samples
        self.resides = False  # samples are on a device, and batches are dealt as indices

    def among(self, indices: Int64[Tensor, " some"], epochs: int | None) -> "TensorStream":
        """Return the stream over a subset of the samples, without copying them."""
        some = TensorStream(self.samples, self.batch_size, None, self.order.seed)
        order = SampleOrder(len(self.samples), self.order.seed, self.samples.device, indices.to(self.samples.device))
        IndexedStream.__init__(some, order, self.batch_size, epochs)
        return some

    def coming(self, batches: int) -> Int64[Tensor, " samples"]:
        return self.order.indices(self._position, batches * self.batch_size)

    def reside(self, device: torch.device, room_bytes: int) -> bool:
        if self.samples.device != device:
            if self.samples.nbytes > room_bytes:
                return False
            self.samples = self.samples.to(device)
            self.order = SampleOrder(len(self.samples), self.order.seed, device)
        self.resides = True
        return True

    def full_round(self, start: int, learners: int) -> tuple[Any, bool]:
        indices = self.order.indices(start, learners * self.batch_size)
        if self.resides:
            return Indexed(self.samples, indices.view(learners, self.batch_size)), True
        return self.samples.gather_stacked(indices, learners), True

    def batch(self, start: int, count: int) -> Batch:
        indices = self.order.indices(start, count)
        return Indexed(self.samples, indices) if self.resides else self.samples.gather(indices)
