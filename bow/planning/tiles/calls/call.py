"""What computes a tile: a function of tensors, or two with a sum over all tiles between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from bow.planning.tiles.tile import Tile

Operands: TypeAlias = Sequence[Tensor | None]
"""The parts that a tile is given, in the order of the operator's arguments."""

Outputs: TypeAlias = tuple[Tensor, ...]

LocalCall: TypeAlias = Callable[[Tile, Operands, int], Outputs]
"""Computes a tile; the number is a seed, the same for all tiles of an operator in a step."""


@dataclass(frozen=True)
class SummedCall:
    """Computes a tile in two parts, between which all tiles of a sum get what each has found.

    Autograd goes through both parts, and through what lies between.

    Attributes:
        moments: what a tile finds, a tensor of the same shape for all tiles of a sum.
        finish: the outputs, given what all tiles of the sum found, stacked in the order of the tiles.
        update: changes in place what the operator keeps from step to step, by what all tiles found: by name, the part
            that belongs to the sum.
        alone: computes a tile that is the only one of its sum, and changes what the operator keeps if there is any.
    """

    moments: Callable[[Tile, Operands], Tensor]
    finish: Callable[[Tile, Operands, Tensor], Outputs]
    update: Callable[[Tile, Tensor, Mapping[str, Tensor]], None]
    alone: Callable[[Tile, Operands, Mapping[str, Tensor] | None], Outputs]


Call: TypeAlias = LocalCall | SummedCall


def given(operands: Operands) -> list[Tensor]:
    """The operands of an operator whose tiles need all of them."""
    found = [operand for operand in operands if operand is not None]
    assert len(found) == len(operands)
    return found
