"""Linear layers and matrix products."""

from collections.abc import Sequence
from typing import Any

from bow.planning.rules.mapped import MappedRule, Shape, Shapes, broadcast
from bow.planning.rules.sides import Along, Side, Whole


class LinearRule(MappedRule):
    """`y = x W^T + b`: split by sample (S), by positions between (A), and by output channel (P).

    Operands: inputs `[sample, ..., in]`, weight `[out, in]`, and a bias `[out]` or none.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        last = len(shapes.output) - 1
        inputs: list[Side] = [*(Along(dim) for dim in range(last)), Whole()]
        return [inputs, [Along(last), Whole()], *([Along(last)] for _ in shapes.operands[2:])]

    def names(self, rank: int) -> Sequence[str]:  # noqa: D102
        return channel_last_names(rank)


class MatmulRule(MappedRule):
    """Products of matrices or of stacks of matrices: split by stack, row and column.

    Operands: `[..., rows, inner]` and `[..., inner, columns]`; the leading dimensions are stretched to each other.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        left, right = shapes.operands
        rank = len(shapes.output)
        return [
            [*stacked(left, shapes.output), Along(rank - 2), Whole()],
            [*stacked(right, shapes.output), Whole(), Along(rank - 1)],
        ]

    def names(self, rank: int) -> Sequence[str]:  # noqa: D102
        return [*(f"dimension {number}" for number in range(rank - 2)), "row", "column"]


def stacked(matrices: Shape, output: Shape) -> list[Side]:
    """The sides of all but the last two dimensions of stacked matrices."""
    return broadcast(matrices[:-2], output[:-2])


def channel_last_names(rank: int) -> Sequence[str]:
    """What the dimensions of samples with the channel at the end are called."""
    return [*(f"dimension {number}" for number in range(rank - 1)), "channel"]
