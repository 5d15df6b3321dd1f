"""Pointwise operators."""

from collections.abc import Sequence
from typing import Any

from bow.planning.rules.mapped import MappedRule, Shapes, broadcast
from bow.planning.rules.sides import Side


class PointwiseRule(MappedRule):
    """Each element is made of those at the same place, operands being stretched to each other: split by everything."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        return [broadcast(shape, shapes.output) for shape in shapes.operands]
