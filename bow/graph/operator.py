"""One operator of a step graph, its arguments, and the specs of the tensors it makes."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Phase: TypeAlias = Literal["forward", "backward", "update"]

# A `Ref`, a number, string, None, dtype, device, layout or memory format, or a tuple of arguments.
Argument: TypeAlias = Any


@dataclass(frozen=True)
class Ref:
    """An argument that refers to a value of the graph."""

    value: int


@dataclass(frozen=True)
class Operator:
    """One ATen operator of a training step, or the update of one parameter group.

    An operator reads values and makes new ones; it never writes to existing values.
    """

    index: int  # position in capture order, which is one legal order
    kind: str  # the operator with its overload, such as `aten.mm.default`; `update.SGD` for an update
    arguments: tuple[Argument, ...]
    keywords: Mapping[str, Argument]
    results: tuple[int | None, ...]  # lists flattened; None where a result is undefined or not a tensor
    phase: Phase
    module: str  # path of the module that called it, or whose backward it belongs to; empty for the loss
    forward: int | None = None  # of a backward operator: index of the forward operator whose gradient it computes
    parameters: tuple[str, ...] = ()  # that it reads, directly or through views; of an update, those it writes
    flops: int = 0  # a multiply-add counts as two
    bytes_moved: int = 0  # of its tensor arguments and results
    is_view: bool = False  # whether it only reinterprets its argument's memory, at no cost
    is_random: bool = False  # whether it draws random numbers
    group: int | None = None  # of an update: index of the optimizer's parameter group
    _reads: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_reads", tuple(refs((self.arguments, tuple(self.keywords.values())))))

    @property
    def reads(self) -> tuple[int, ...]:
        """The values among its arguments, in order, with repeats."""
        return self._reads

    def with_arguments(self, change: Callable[[Ref], Argument]) -> "Operator":
        keywords = {name: map_refs(change, value) for name, value in self.keywords.items()}
        return dataclasses.replace(self, arguments=map_refs(change, self.arguments), keywords=keywords)


def refs(argument: Argument) -> Iterator[int]:
    if isinstance(argument, Ref):
        yield argument.value
    elif isinstance(argument, tuple):
        for part in argument:
            yield from refs(part)


def map_refs(change: Callable[[Ref], Argument], argument: Argument) -> Argument:
    if isinstance(argument, Ref):
        return change(argument)
    if isinstance(argument, tuple):
        return tuple(map_refs(change, part) for part in argument)
    return argument


@dataclass(frozen=True)
class TensorSpec:
    """Shape, strides and dtype of one value of a step graph."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes moved by reading the tensor once; elements repeated by `expand` count once."""
        pairs = zip(self.shape, self.strides, strict=True)
        return math.prod(size for size, stride in pairs if stride != 0 or size == 0) * self.dtype.itemsize

    def lies_like(self, other: "TensorSpec") -> bool:
        """Whether shape, dtype and strides agree, ignoring strides of dimensions of size 1."""
        return (self.shape, self.dtype) == (other.shape, other.dtype) and self._steps() == other._steps()

    def empty(self, device: torch.device | str = "cpu") -> Tensor:
        """Return a tensor of this spec; on the CPU it takes no memory until it is written to."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"

    def _steps(self) -> list[int]:
        return [stride for size, stride in zip(self.shape, self.strides, strict=True) if size > 1]
