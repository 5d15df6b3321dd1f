"""What is known of a tensor before it exists."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorSpec:
    """Shape, strides and dtype of one value of a step graph.

    Example:
        >>> TensorSpec.of(torch.zeros(4, 3)).num_bytes
        48
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        """The spec of a tensor, real or fake."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes that reading the tensor once moves; what an expanded tensor repeats counts once."""
        pairs = zip(self.shape, self.strides, strict=True)
        return math.prod(size for size, stride in pairs if stride != 0 or size == 0) * self.dtype.itemsize

    def lies_like(self, other: "TensorSpec") -> bool:
        """Whether both have the same elements at the same places; strides of dimensions of size 1 do not matter."""
        return (self.shape, self.dtype) == (other.shape, other.dtype) and self._steps() == other._steps()

    def meta(self) -> Tensor:
        """A tensor of this spec without memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"

    def _steps(self) -> list[int]:
        return [stride for size, stride in zip(self.shape, self.strides, strict=True) if size > 1]
