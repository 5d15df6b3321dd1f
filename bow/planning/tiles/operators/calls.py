"""Tiles, which are parts of operators, and the interface of what computes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bow.planning.problem.box import Box, sizes, whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.mapped import Shapes, places, shapes_of
from bow.planning.rules.rule import Rule
from bow.planning.tiles.operators.exported import decoded, function


@dataclass(frozen=True)
class Tile:
    """A part of an operator that one device computes."""

    kind: str  # of the operator
    attributes: Mapping[str, Any]  # of the operator
    shapes: Shapes  # of the whole operands and of the whole output
    box: Box  # of the first output
    # By operand, in the order of the operator's arguments: what of it the tile is given; None: nothing.
    operands: tuple[Box | None, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the first output's part."""
        return sizes(self.box)

    @cached_property
    def is_whole(self) -> bool:
        """Whether there is no other tile."""
        return self.box == whole(self.shapes.output)


def tile_of(graph: OperatorGraph, operator: PlanOperator, rule: Rule, box: Box) -> Tile:
    """The tile that makes a box of an operator's first output."""
    boxes = {
        "input": rule.input_boxes(operator, graph, box),
        "weight": rule.weight_boxes(operator, graph, box),
    }
    operands = tuple(boxes[kind][index] for kind, index in places(operator))
    return Tile(operator.kind, operator.attributes, shapes_of(operator, graph), box, operands)


Operands: TypeAlias = Sequence[Tensor | None]
"""The parts that a tile is given, in the order of the operator's arguments."""

Outputs: TypeAlias = tuple[Tensor, ...]

LocalCall: TypeAlias = Callable[[Tile, Operands, int], Outputs]
"""Computes a tile; the number is a seed, the same for all tiles of an operator in a step."""


@dataclass(frozen=True)
class SummedCall:
    """Computes a tile in two parts, between which all tiles of a sum get what each has found."""

    # Autograd goes through both parts, and through what lies between.

    moments: Callable[[Tile, Operands], Tensor]  # what a tile finds, a tensor of the same shape for all tiles of a sum
    # The outputs, given what all tiles of the sum found, stacked in the order of the tiles.
    finish: Callable[[Tile, Operands, Tensor], Outputs]
    # Changes in place what the operator keeps from step to step, by what all tiles found: by name, the part that
    # belongs to the sum.
    update: Callable[[Tile, Tensor, Mapping[str, Tensor]], None]
    # Computes a tile that is the only one of its sum, and changes what the operator keeps if there is any.
    alone: Callable[[Tile, Operands, Mapping[str, Tensor] | None], Outputs]


Call: TypeAlias = LocalCall | SummedCall

C = TypeVar("C", bound=LocalCall)
CALLS: dict[str, Call] = {}  # by kind; operators of other kinds are whole, and called by their name


def computes(*kinds: str) -> Callable[[C], C]:
    """Put a function into the table."""

    def register(call: C) -> C:
        CALLS.update(dict.fromkeys(kinds, call))
        return call

    return register


def call_of(kind: str) -> Call:
    return CALLS.get(kind, call_by_name)


@computes("pointwise", "reduction")
def call_by_name(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Whatever operator the attributes name, called with the parts in the place of the whole."""
    # Attributes: `function`, `arguments` and `keywords`, as `encoded` writes them.
    attributes = tile.attributes
    device = next((operand.device for operand in operands if operand is not None), torch.device("cpu"))
    arguments = decoded(attributes["arguments"], operands, device)
    keywords = {name: decoded(value, operands, device) for name, value in attributes["keywords"].items()}
    made: Any = function(attributes["function"])(*arguments, **keywords)
    return (made,) if isinstance(made, Tensor) else tuple(made)


def plain(function: Callable[..., Tensor], *names: str) -> LocalCall:
    """A function of the operands, which are all there, and of some attributes behind them."""

    def call(tile: Tile, operands: Operands, seed: int) -> Outputs:
        return (function(*required(operands), *(tile.attributes[name] for name in names)),)

    return call


def required(operands: Operands) -> list[Tensor]:
    """The operands of an operator whose tiles need all of them."""
    found = [operand for operand in operands if operand is not None]
    assert len(found) == len(operands)
    return found


def padded(tensor: Tensor, amounts: Sequence[tuple[int, int]], value: float) -> Tensor:
    """A tensor with a constant around its last dimensions."""
    ends = [each for pair in reversed(amounts) for each in pair]
    larger = F.pad(tensor, [max(0, each) for each in ends], value=value)
    # Not in one call: F.pad cuts off first, and fails where more is cut off than the tensor has.
    return F.pad(larger, [min(0, each) for each in ends]) if min(ends, default=0) < 0 else larger
