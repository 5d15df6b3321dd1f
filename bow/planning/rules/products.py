"""Rules of matrix products, attention, embedding, LSTM cells, softmax and cross entropy."""

from collections.abc import Collection, Sequence
from typing import Any

from bow.planning.problem.box import Box
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.mapped import Along, MappedRule, Shape, Shapes, Side, Whole, all_of, broadcast


class LinearRule(MappedRule):
    """`y = x W^T + b`: split by sample (S), by positions between (A), and by output channel (P).

    Operands: inputs `[sample, ..., in]`, weight `[out, in]`, and a bias `[out]` or none.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        last = len(shapes.output) - 1
        inputs: list[Side] = [*(Along(dim) for dim in range(last)), Whole()]
        return [inputs, [Along(last), Whole()], *([Along(last)] for _ in shapes.operands[2:])]

    def names(self, rank: int) -> Sequence[str]:
        return channel_last_names(rank)


class MatmulRule(MappedRule):
    """Products of matrices or of stacks of matrices: split by stack, row and column.

    Operands: `[..., rows, inner]` and `[..., inner, columns]`; the leading dimensions are stretched to each other.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        left, right = shapes.operands
        rank = len(shapes.output)
        return [
            [*stacked(left, shapes.output), Along(rank - 2), Whole()],
            [*stacked(right, shapes.output), Whole(), Along(rank - 1)],
        ]

    def names(self, rank: int) -> Sequence[str]:
        return [*(f"dimension {number}" for number in range(rank - 2)), "row", "column"]


def stacked(matrices: Shape, output: Shape) -> list[Side]:
    """The sides of all but the last two dimensions of stacked matrices."""
    return broadcast(matrices[:-2], output[:-2])


def channel_last_names(rank: int) -> Sequence[str]:
    """What the dimensions of samples with the channel at the end are called."""
    return [*(f"dimension {number}" for number in range(rank - 1)), "channel"]


class AttentionRule(MappedRule):
    """`softmax(q k^T scale + mask) v`: split by sample (S), by head, query and channel of the values (A).

    Operands: queries `[sample, ..., query, in]`, keys `[sample, ..., key, in]`, values `[sample, ..., key, out]`, and a
    mask that is stretched to `[sample, ..., query, key]`, or none. Attributes: `causal`, and `scale` (None: that of
    PyTorch).
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        queries, keys, values, *masks = shapes.operands
        rank, output = len(shapes.output), shapes.output
        return [
            [*stacked(queries, output), Along(rank - 2), Whole()],
            [*stacked(keys, output), Whole(), Whole()],
            [*stacked(values, output), Whole(), Along(rank - 1)],
            *([*broadcast(mask, output)[:-1], Whole()] for mask in masks),
        ]

    def names(self, rank: int) -> Sequence[str]:
        between = {2: ["head"]}.get(rank - 2, [f"dimension {number}" for number in range(1, rank - 2)])
        return ["sample", *between, "query", "channel"][-rank:]


class EmbeddingRule(MappedRule):
    """Rows of a table: split by sample (S), position (A) and channel (P).

    Operands: numbers of rows, of any shape, and the table `[row, channel]`.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        last = len(shapes.output) - 1
        return [[Along(dim) for dim in range(last)], [Whole(), Along(last)]]

    def names(self, rank: int) -> Sequence[str]:
        return channel_last_names(rank)


class LSTMCellRule(MappedRule):
    """One step of an LSTM: split by sample (S) and by unit (P).

    Operands: inputs `[sample, in]`, hidden state and cell state `[sample, unit]`, weights `[4, unit, in]` and
    `[4, unit, unit]`, and two biases `[4, unit]` or none; the gates' rows of a unit so lie in one box. Outputs: both
    states.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        read: list[Side] = [Along(0), Whole()]
        weight: list[Side] = [Whole(), Along(1), Whole()]
        biases: list[list[Side]] = [[Whole(), Along(1)] for _ in shapes.operands[5:]]
        return [read, read, [Along(0), Along(1)], weight, weight, *biases]

    def names(self, rank: int) -> Sequence[str]:
        return ["sample", "unit"]

    def output_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        return box, box


class SoftmaxRule(MappedRule):
    """Softmax or its logarithm: split by all dimensions but that which is summed, the attribute `dim`."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        dims = range(len(shapes.output))
        return [[Whole() if dim == attributes["dim"] else Along(dim) for dim in dims]]

    def unsplit(self, attributes: Any, shapes: Shapes) -> Collection[int]:
        return (attributes["dim"],)


class CrossEntropyRule(MappedRule):
    """Cross entropy of each sample and position, or what else takes scores of classes and the right class.

    The classes stay whole. Operands: scores `[sample, class, ...]` and classes `[sample, ...]`.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        positions = [Along(dim) for dim in range(1, len(shapes.output))]
        return [[Along(0), Whole(), *positions], [Along(0), *positions]]


class CountedMeanRule(MappedRule):
    """The mean of the losses whose class is not the ignored one: one tile.

    Operands: losses and classes of the same shape. Attribute: `ignore_index`.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        return [all_of(shape) for shape in shapes.operands]
