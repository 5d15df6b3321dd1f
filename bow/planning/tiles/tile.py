"""What a tile's computation is told."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bow.planning.problem.box import Box, whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.mapped import Shapes, places, shapes_of
from bow.planning.rules.rule import Rule


@dataclass(frozen=True)
class Tile:
    """A part of an operator that one device computes.

    Attributes:
        kind: of the operator.
        attributes: of the operator.
        shapes: of the whole operands and of the whole output.
        box: of the first output.
        operands: by operand, in the order of the operator's arguments: what of it the tile is given; None: nothing.
    """

    kind: str
    attributes: Mapping[str, Any]
    shapes: Shapes
    box: Box
    operands: tuple[Box | None, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the first output's part."""
        return tuple(end - start for start, end in self.box)

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
