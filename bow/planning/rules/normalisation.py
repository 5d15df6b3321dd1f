"""Batch norm and layer norm."""

from collections.abc import Collection, Sequence
from typing import Any

from bow.planning.problem.box import Box
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.convolution import image_names
from bow.planning.rules.mapped import MappedRule, Shapes
from bow.planning.rules.sides import Along, Side, Whole


class FrozenBatchNormRule(MappedRule):
    """Batch norm with given statistics: split by sample (S), position (A) and channel (P).

    Operands: samples `[sample, channel, ...]`, then what there is of one number a channel: mean and variance, weight
    and bias.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        samples: list[Side] = [Along(dim) for dim in range(len(shapes.output))]
        return [samples, *([Along(1)] for _ in shapes.operands[1:])]

    def names(self, rank: int) -> Sequence[str]:  # noqa: D102
        return image_names(rank)


class BatchNormRule(FrozenBatchNormRule):
    """Batch norm with the batch's own statistics, which all tiles of a channel sum: exact under every split.

    Operands: samples `[sample, channel, ...]`, weight and bias `[channel]` or none.

    References:
        Ioffe, Szegedy: Batch normalization, 2015, algorithm 1.
        Chan, Golub, LeVeque: Algorithms for computing the sample variance, 1983 (how the tiles' moments are summed).
    """

    def sums(self, operator: PlanOperator) -> tuple[str, ...]:  # noqa: D102
        return "mean", "variance"

    def sum_box(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> Box:  # noqa: D102
        return (box[1],)


class LayerNormRule(MappedRule):
    """Layer norm: split by all dimensions but the last ones, which are normalised.

    Operands: samples, and a weight and a bias of the normalised dimensions or none. Attribute: `num_dims`, how many are
    normalised.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        free = len(shapes.output) - attributes["num_dims"]
        normalised: list[Side] = [Whole() for _ in shapes.output[free:]]
        return [[*(Along(dim) for dim in range(free)), *normalised], *(normalised for _ in shapes.operands[1:])]

    def unsplit(self, attributes: Any, shapes: Shapes) -> Collection[int]:  # noqa: D102
        return range(len(shapes.output) - attributes["num_dims"], len(shapes.output))
