"""Read, assemble and accumulate boxes of tensors."""

import functools
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from bow.planning.problem.box import Box, relative_to, sizes


def region(tensor: Tensor, box: Box, origin: Box) -> Tensor:
    """Return a view of a box of a tensor that itself covers the box `origin`."""
    return tensor if box == origin else tensor[_indices(box, origin)]


def put_together(box: Box, parts: Sequence[tuple[Box, Tensor]]) -> Tensor:
    """Assemble a box from parts that cover it."""
    if len(parts) == 1 and parts[0][0] == box:
        return parts[0][1]
    whole = parts[0][1].new_empty(sizes(box))
    for each, tensor in parts:
        region(whole, each, box).copy_(tensor)
    return whole


@functools.lru_cache(maxsize=2**17)
def _indices(box: Box, origin: Box) -> tuple[slice, ...]:
    """Return a box as indices into `origin`; cached because every step uses the same ones."""
    return tuple(slice(*side) for side in relative_to(box, origin))


class Sums:
    """Accumulators of tensors, filled box by box; a single addend that covers the accumulator is not copied."""

    def __init__(self, empty: Callable[[Hashable, tuple[int, ...]], Tensor]) -> None:
        self._empty = empty
        self._sums: dict[Hashable, tuple[Tensor, bool]] = {}  # with whether the tensor is owned, not an addend

    def add(self, key: Hashable, origin: Box, box: Box, tensor: Tensor) -> None:
        if key not in self._sums:
            if box == origin:
                self._sums[key] = tensor, False
                return
            self._sums[key] = self._empty(key, sizes(origin)), True
        total, is_own = self._sums[key]
        if not is_own:
            total = total.clone(memory_format=torch.contiguous_format)
            self._sums[key] = total, True
        region(total, box, origin).add_(tensor)

    def take(self, key: Hashable, origin: Box) -> Tensor:
        """Remove and return a sum; zeros if nothing was added."""
        if key not in self._sums:
            return self._empty(key, sizes(origin))
        return self._sums.pop(key)[0]
