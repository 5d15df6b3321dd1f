"""Samples that are tensors in memory."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from bow.data.stream import Batch
from bow.errors import DataError


class TensorSamples:
    """A pytree of tensors whose first dimension counts the samples.

    Args:
        data: tensors `[samples, ...]`, all on one device.

    Raises:
        DataError: lengths or devices differ, or there are no samples.
    """

    def __init__(self, data: Any) -> None:
        leaves, self._spec = tree_flatten(data)
        _check_leaves(leaves)
        self._leaves: list[Tensor] = [leaf.detach() for leaf in leaves]
        self.device: torch.device = leaves[0].device

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._leaves[0])

    @property
    def nbytes(self) -> int:
        """What they take."""
        return sum(leaf.nbytes for leaf in self._leaves)

    def to(self, device: torch.device) -> "TensorSamples":
        """The same samples on a device."""
        return TensorSamples(self.map(lambda leaf: leaf.to(device)))

    def map(self, function: Callable[[Tensor], Tensor]) -> Any:
        """What a function makes of every tensor, as a pytree."""
        return self._tree([function(leaf) for leaf in self._leaves])

    def gather(self, indices: Tensor) -> Batch:
        """The samples at these indices, as tensors `[len(indices), ...]`."""
        return self.map(lambda leaf: leaf.index_select(0, indices))

    def gather_stacked(self, indices: Tensor, learners: int) -> Batch:
        """The samples at these indices, as tensors `[learners, len(indices) // learners, ...]`."""
        shape = (learners, len(indices) // learners)
        return self.map(lambda leaf: leaf.index_select(0, indices).view(*shape, *leaf.shape[1:]))

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """All samples in order, as views."""
        for pieces in zip(*(torch.split(leaf, batch_size) for leaf in self._leaves), strict=True):
            yield self._tree(list(pieces))

    def _tree(self, leaves: list[Tensor]) -> Batch:
        spec: TreeSpec = self._spec
        return tree_unflatten(leaves, spec)


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
