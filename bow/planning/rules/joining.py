"""Concatenation and stacking."""

import itertools
from collections.abc import Sequence
from typing import Any

from bow.planning.problem.box import Box
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.mapped import MappedRule, Shapes
from bow.planning.rules.sides import Along, Shifted, Side


class ConcatRule(MappedRule):
    """Tensors behind each other along the attribute `dim`: split by everything."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        joined, rank = attributes["dim"], len(shapes.output)
        offsets = itertools.accumulate((shape[joined] for shape in shapes.operands[:-1]), initial=0)
        return [[Shifted(joined, offset) if dim == joined else Along(dim) for dim in range(rank)] for offset in offsets]


class StackRule(MappedRule):
    """Tensors side by side along a new dimension, the attribute `dim`: split by everything."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        new = attributes["dim"]
        kept: list[Side] = [Along(dim) for dim in range(len(shapes.output)) if dim != new]
        return [kept for _ in shapes.operands]

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:  # noqa: D102
        first, end = box[operator.attributes["dim"]]
        boxes = super().input_boxes(operator, graph, box)
        return tuple(each if first <= number < end else None for number, each in enumerate(boxes))
