"""Padding with a constant."""

from collections.abc import Sequence
from typing import Any

from bow.planning.rules.mapped import MappedRule, Shapes
from bow.planning.rules.sides import Side, SlidingWindow


class PadRule(MappedRule):
    """A tensor in a larger one, the rest of which is `value`: split by everything.

    Attribute: `before`, by dimension how many elements are put before it; less than 0: that many are cut off.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        return [[SlidingWindow(dim, kernel=1, padding=before) for dim, before in enumerate(attributes["before"])]]
