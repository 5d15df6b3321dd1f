"""Embedding."""

from collections.abc import Sequence
from typing import Any

from bow.planning.rules.mapped import MappedRule, Shapes
from bow.planning.rules.products import channel_last_names
from bow.planning.rules.sides import Along, Side, Whole


class EmbeddingRule(MappedRule):
    """Rows of a table: split by sample (S), position (A) and channel (P).

    Operands: numbers of rows, of any shape, and the table `[row, channel]`.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        last = len(shapes.output) - 1
        return [[Along(dim) for dim in range(last)], [Whole(), Along(last)]]

    def names(self, rank: int) -> Sequence[str]:  # noqa: D102
        return channel_last_names(rank)
