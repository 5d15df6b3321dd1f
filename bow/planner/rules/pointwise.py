"""Pointwise operators."""

from collections.abc import Sequence
from typing import Any

from bow.planner.rules.mapped import MappedRule, Shapes, broadcast
from bow.planner.rules.sides import Side


class PointwiseRule(MappedRule):
    """Each element is made of those at the same place, operands being stretched to each other: split by everything."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        return [broadcast(shape, shapes.output) for shape in shapes.operands]
