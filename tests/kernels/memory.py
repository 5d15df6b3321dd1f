"""Rows in memory as the kernels meet them: aligned or not, with gaps, and with guards that must stay what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GUARD = 77.0
TOLERANCES = {torch.float64: (1e-13, 1e-13), torch.float32: (5e-6, 5e-6), torch.bfloat16: (2**-8 + 1e-5, 5e-6)}


@dataclass(frozen=True)
class Layout:
    """Where rows begin, in elements.

    Attributes:
        offset: of the first row, behind a 64-byte boundary.
        odd_stride: the next row begins at an odd distance instead of a multiple of 16 elements.
        only: the one tensor of a test, by number, that lies so while the others are aligned; None: all of them.
    """

    offset: int = 0
    odd_stride: bool = False
    only: int | None = None

    def place(self, columns: int, number: int) -> tuple[int, int]:
        """Offset and stride of the tensor `number`."""
        padded = -(-columns // 16) * 16
        if self.only not in (None, number):
            return 0, padded
        return self.offset, padded + (1 if self.odd_stride else 16)


ALIGNED = Layout()
SHIFTED = Layout(offset=1)
ODD_STRIDE = Layout(odd_stride=True)
ONE_ODD = [Layout(offset, not offset, only) for only in range(5) for offset in (0, 1)]


def left_by_task(finite: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[loss, sum of the gradient, a metric]` of a learning task on rows of a dtype."""
    told = [0.5, 2.0 if finite else float("nan"), 3.0]
    return torch.tensor(told, dtype=torch.promote_types(dtype, torch.float32), device=device)


@dataclass
class Memory:
    """Tensors of one test."""

    dtype: torch.dtype
    device: torch.device
    layout: Layout = ALIGNED
    seed: int = 0
    _allocated: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def rows(self, *shape: int) -> Tensor:
        """Random rows `[learners, columns]`, or one row `[columns]`."""
        offset, stride = self.layout.place(shape[-1], len(self._allocated))
        num_rows = shape[0] if len(shape) > 1 else 1
        flat = torch.full((offset + num_rows * stride + 1,), GUARD, dtype=self.dtype, device=self.device)
        view = flat.as_strided(shape, (stride, 1)[-len(shape) :], offset)
        view.copy_(torch.from_numpy(self._random.normal(size=shape)))
        guards = torch.ones(flat.shape, dtype=torch.bool, device=self.device)
        guards.as_strided(shape, view.stride(), offset).fill_(False)
        self._allocated.append((flat, guards))
        return view

    def check_guards(self) -> None:
        """Fails where something between, before or behind the rows was written."""
        for flat, guards in self._allocated:
            assert (flat[guards] == GUARD).all()


def exact(tensor: Tensor) -> NDArray[np.float64]:
    """The values of a tensor, which later changes do not reach."""
    return tensor.double().cpu().numpy().copy()


def check_close(tensors: Sequence[Tensor], expected: Sequence[NDArray[np.float64]], case: object) -> None:
    for number, (tensor, values) in enumerate(zip(tensors, expected, strict=True)):
        rtol, atol = TOLERANCES[tensor.dtype]
        np.testing.assert_allclose(exact(tensor), values, rtol, atol, err_msg=f"result {number} of {case}")
