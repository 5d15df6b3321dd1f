"""Batches that lie on a device with all other samples, known by their numbers."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from bow.data.tensors import TensorSamples

Gather: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""`gather(source, indices, out)`: `out[i] = source[indices[i]]`."""


class Indexed:
    """Samples that are still to be gathered: as a pytree, one tensor of numbers.

    A captured graph begins by gathering them, so that no batch has to be brought from the host.

    Args:
        samples: where from.
        indices: `[batch]`, or `[learners, batch]` for the batches of all learners.
    """

    def __init__(self, samples: TensorSamples, indices: Int64[Tensor, "*shape"]) -> None:
        self.samples = samples
        self.indices = indices

    def gathered(self, gather: Gather) -> Any:
        """The samples, as tensors `[*shape of the indices, ...]`."""
        numbers = self.indices.reshape(-1)

        def take(source: Tensor) -> Tensor:
            out = torch.empty(len(numbers), *source.shape[1:], dtype=source.dtype, device=source.device)
            gather(source, numbers, out)
            return out.view(*self.indices.shape, *source.shape[1:])

        return self.samples.map(take)


def _flatten(batch: Indexed) -> tuple[list[Tensor], TensorSamples]:
    return [batch.indices], batch.samples


def _unflatten(leaves: Any, samples: TensorSamples) -> Indexed:
    (indices,) = leaves
    return Indexed(samples, indices)


register_pytree_node(Indexed, _flatten, _unflatten, serialized_type_name="bow.data.Indexed")
