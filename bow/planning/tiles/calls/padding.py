"""Padding, and cutting off."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor


def padded(tensor: Tensor, amounts: Sequence[tuple[int, int]], value: float) -> Tensor:
    """A tensor with a constant around its last dimensions.

    Example:
        >>> import torch
        >>> padded(torch.ones(1), [(3, -2)], 0.0)
        tensor([0., 0.])
    """
    ends = [each for pair in reversed(amounts) for each in pair]
    larger = F.pad(tensor, [max(0, each) for each in ends], value=value)
    # Not in one call: F.pad cuts off first, and fails where more is cut off than the tensor has.
    return F.pad(larger, [min(0, each) for each in ends]) if min(ends, default=0) < 0 else larger
