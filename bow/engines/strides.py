"""How tensors lie in memory."""

from typing import NamedTuple

from torch import Tensor


class View(NamedTuple):
    """How a tensor lies in memory. A dimension of stride 0 counts as one of size 1: `expand` repeats it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def compact(self) -> tuple[int, ...]:
        """The strides in the same order without gaps."""
        strides, step = list(self.strides), 1
        for dimension in self._from_fastest():
            strides[dimension] = step
            step *= self.shape[dimension]
        return tuple(strides)

    @property
    def span(self) -> int:
        """Elements from the first to the last one, gaps included."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def overlaps(self) -> bool:
        """Whether elements share memory, as the windows of `unfold` do."""
        reach = 1
        for dimension in self._from_fastest():
            if self.strides[dimension] < reach:
                return True
            reach += (self.shape[dimension] - 1) * self.strides[dimension]
        return False

    def _from_fastest(self) -> list[int]:
        dimensions = [dimension for dimension, size in enumerate(self.shape) if size > 1]
        return sorted(dimensions, key=lambda dimension: self.strides[dimension])


def view_of(tensor: Tensor) -> View:
    """How a tensor lies in its allocation."""
    shape = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return View(tuple(shape), tensor.stride(), int(tensor.storage_offset()))
