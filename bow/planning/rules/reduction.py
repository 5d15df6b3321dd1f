"""Sums, means and extremes over some dimensions."""

from collections.abc import Sequence
from typing import Any

from bow.planning.rules.mapped import MappedRule, Shapes
from bow.planning.rules.sides import Along, Side, Whole


class ReductionRule(MappedRule):
    """One number of all elements along the attribute `dims`: split by all other dimensions.

    Attribute: `keepdim`, whether the output has those dimensions, with one element each.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        sides: list[Side] = []
        kept = 0
        for dim in range(len(shapes.operands[0])):
            is_reduced = dim in attributes["dims"]
            sides.append(Whole() if is_reduced else Along(kept))
            kept += not is_reduced or attributes["keepdim"]
        return [sides]
