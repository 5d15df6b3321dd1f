"""Tiles of operators, and the interface of functions that compute them."""

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
    shapes: Shapes  # of the whole operands and the whole output
    box: Box  # of the first output
    operands: tuple[Box | None, ...]  # boxes that it reads, in the order of the operator's arguments; None: nothing

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Shape of the tile's part of the first output."""
        return sizes(self.box)

    @cached_property
    def is_whole(self) -> bool:
        return self.box == whole(self.shapes.output)


def tile_of(graph: OperatorGraph, operator: PlanOperator, rule: Rule, box: Box) -> Tile:
    boxes = {
        "input": rule.input_boxes(operator, graph, box),
        "weight": rule.weight_boxes(operator, graph, box),
    }
    operands = tuple(boxes[kind][index] for kind, index in places(operator))
    return Tile(operator.kind, operator.attributes, shapes_of(operator, graph), box, operands)


Operands: TypeAlias = Sequence[Tensor | None]  # the boxes that a tile reads, in the order of the operator's arguments
Outputs: TypeAlias = tuple[Tensor, ...]
LocalCall: TypeAlias = Callable[[Tile, Operands, int], Outputs]  # computes a tile; seed: equal for all tiles in a step


@dataclass(frozen=True)
class SummedCall:
    """Computes a tile in two phases, with an exchange of moments between all tiles of a sum."""

    # Differentiable through both phases and the exchange.

    moments: Callable[[Tile, Operands], Tensor]  # a tile's moments, of the same shape for all tiles of a sum
    finish: Callable[[Tile, Operands, Tensor], Outputs]  # the outputs, from the moments of all tiles, stacked in order
    update: Callable[[Tile, Tensor, Mapping[str, Tensor]], None]  # update the sum's running statistics in place
    # Compute a tile that is the only one of its sum, and update its running statistics, if any.
    single_tile: Callable[[Tile, Operands, Mapping[str, Tensor] | None], Outputs]


Call: TypeAlias = LocalCall | SummedCall

C = TypeVar("C", bound=LocalCall)
CALLS: dict[str, Call] = {}  # by kind; operators of other kinds are not split, and called by their name


def tile_function(*kinds: str) -> Callable[[C], C]:
    def register(call: C) -> C:
        CALLS.update(dict.fromkeys(kinds, call))
        return call

    return register


def call_of(kind: str) -> Call:
    return CALLS.get(kind, call_by_name)


@tile_function("pointwise", "reduction")
def call_by_name(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Call the operator named in the attributes with the tile's operands."""
    # Attributes: `function`, `arguments` and `keywords`, in the format of `encoded`.
    attributes = tile.attributes
    device = next((operand.device for operand in operands if operand is not None), torch.device("cpu"))
    arguments = decoded(attributes["arguments"], operands, device)
    keywords = {name: decoded(value, operands, device) for name, value in attributes["keywords"].items()}
    made: Any = function(attributes["function"])(*arguments, **keywords)
    return (made,) if isinstance(made, Tensor) else tuple(made)


def plain(function: Callable[..., Tensor], *names: str) -> LocalCall:
    """Wrap a function whose arguments are all operands, none of them None, followed by some attributes."""

    def call(tile: Tile, operands: Operands, seed: int) -> Outputs:
        return (function(*required(operands), *(tile.attributes[name] for name in names)),)

    return call


def required(operands: Operands) -> list[Tensor]:
    """Return the operands, asserting that none is None."""
    found = [operand for operand in operands if operand is not None]
    assert len(found) == len(operands)
    return found


def padded(tensor: Tensor, amounts: Sequence[tuple[int, int]], value: float) -> Tensor:
    """Pad the last dimensions of a tensor with a constant; negative amounts crop."""
    ends = [each for pair in reversed(amounts) for each in pair]
    larger = F.pad(tensor, [max(0, each) for each in ends], value=value)
    # Two calls, since F.pad crops first and fails if it would crop more than the unpadded tensor has.
    return F.pad(larger, [min(0, each) for each in ends]) if min(ends, default=0) < 0 else larger
