"""Boxes of real tensors."""

import functools
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from bow.planning.problem.box import Box, sizes, within


def region(tensor: Tensor, box: Box, origin: Box) -> Tensor:
    """A box of a tensor as a view, where the tensor is itself a box of a larger one."""
    return tensor if box == origin else tensor[_indices(box, origin)]


def put_together(box: Box, parts: Sequence[tuple[Box, Tensor]]) -> Tensor:
    """The values of a box out of parts that fill it."""
    if len(parts) == 1 and parts[0][0] == box:
        return parts[0][1]
    whole = parts[0][1].new_empty(sizes(box))
    for each, tensor in parts:
        region(whole, each, box).copy_(tensor)
    return whole


@functools.lru_cache(maxsize=2**17)
def _indices(box: Box, origin: Box) -> tuple[slice, ...]:
    """A box as indices into another one; every step asks for the same ones again."""
    return tuple(slice(*side) for side in within(box, origin))


class Sums:
    """Tensors that others are added to, part by part; those that one part fills are not copied."""

    def __init__(self, empty: Callable[[Hashable, tuple[int, ...]], Tensor]) -> None:
        self._empty = empty
        self._sums: dict[Hashable, tuple[Tensor, bool]] = {}  # whether the tensor is nobody else's

    def add(self, key: Hashable, origin: Box, box: Box, tensor: Tensor) -> None:
        """Add to a box of a sum."""
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
        """A sum, which is forgotten; zeros where nothing was added."""
        if key not in self._sums:
            return self._empty(key, sizes(origin))
        return self._sums.pop(key)[0]
