"""Scaled dot product attention."""

from collections.abc import Sequence
from typing import Any

from bow.planning.rules.mapped import MappedRule, Shapes, broadcast
from bow.planning.rules.products import stacked
from bow.planning.rules.sides import Along, Side, Whole


class AttentionRule(MappedRule):
    """`softmax(q k^T scale + mask) v`: split by sample (S), by head, query and channel of the values (A).

    Operands: queries `[sample, ..., query, in]`, keys `[sample, ..., key, in]`, values `[sample, ..., key, out]`, and a
    mask that is stretched to `[sample, ..., query, key]`, or none. Attributes: `causal`, and `scale` (None: that of
    PyTorch).
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        queries, keys, values, *masks = shapes.operands
        rank, output = len(shapes.output), shapes.output
        return [
            [*stacked(queries, output), Along(rank - 2), Whole()],
            [*stacked(keys, output), Whole(), Whole()],
            [*stacked(values, output), Whole(), Along(rank - 1)],
            *([*broadcast(mask, output)[:-1], Whole()] for mask in masks),
        ]

    def names(self, rank: int) -> Sequence[str]:  # noqa: D102
        between = {2: ["head"]}.get(rank - 2, [f"dimension {number}" for number in range(1, rank - 2)])
        return ["sample", *between, "query", "channel"][-rank:]
