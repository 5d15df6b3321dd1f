"""Softmax and cross entropy."""

from collections.abc import Collection, Sequence
from typing import Any

from bow.planning.rules.mapped import MappedRule, Shapes, all_of
from bow.planning.rules.sides import Along, Side, Whole


class SoftmaxRule(MappedRule):
    """Softmax or its logarithm: split by all dimensions but that which is summed, the attribute `dim`."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        dims = range(len(shapes.output))
        return [[Whole() if dim == attributes["dim"] else Along(dim) for dim in dims]]

    def unsplit(self, attributes: Any, shapes: Shapes) -> Collection[int]:  # noqa: D102
        return (attributes["dim"],)


class CrossEntropyRule(MappedRule):
    """Cross entropy of each sample and position, or what else takes scores of classes and the right class.

    The classes stay whole. Operands: scores `[sample, class, ...]` and classes `[sample, ...]`.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        positions = [Along(dim) for dim in range(1, len(shapes.output))]
        return [[Along(0), Whole(), *positions], [Along(0), *positions]]


class CountedMeanRule(MappedRule):
    """The mean of the losses whose class is not the ignored one: one tile.

    Operands: losses and classes of the same shape. Attribute: `ignore_index`.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        return [all_of(shape) for shape in shapes.operands]
