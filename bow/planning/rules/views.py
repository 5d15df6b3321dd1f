"""Rules of pointwise operators, reductions, and operators that rearrange elements: joining, views, reshaping."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bow.planning.problem.box import Box, Interval
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.rule import (
    Along,
    Dimension,
    Fixed,
    MappedRule,
    Rule,
    Shapes,
    Shifted,
    Side,
    Strided,
    Whole,
    broadcast,
)


class PointwiseRule(MappedRule):
    """Elementwise operators with broadcasting: split by all dimensions."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        return [broadcast(shape, shapes.output) for shape in shapes.operands]


class ReductionRule(MappedRule):
    """Reduction over the attribute `dims`: split by all other dimensions."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        sides: list[Side] = []
        kept = 0
        for dim in range(len(shapes.operands[0])):
            is_reduced = dim in attributes["dims"]
            sides.append(Whole() if is_reduced else Along(kept))
            kept += not is_reduced or attributes["keepdim"]
        return [sides]


class ConcatRule(MappedRule):
    """Concatenation along the attribute `dim`: split by all dimensions."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        joined, rank = attributes["dim"], len(shapes.output)
        offsets = itertools.accumulate((shape[joined] for shape in shapes.operands[:-1]), initial=0)
        return [[Shifted(joined, offset) if dim == joined else Along(dim) for dim in range(rank)] for offset in offsets]


class StackRule(MappedRule):
    """Stacking along a new dimension, the attribute `dim`: split by all dimensions."""

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        new = attributes["dim"]
        kept: list[Side] = [Along(dim) for dim in range(len(shapes.output)) if dim != new]
        return [kept for _ in shapes.operands]

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        first, end = box[operator.attributes["dim"]]
        boxes = super().input_boxes(operator, graph, box)
        return tuple(each if first <= number < end else None for number, each in enumerate(boxes))


class PermuteRule(MappedRule):
    """Permutation of dimensions: dimension d of the output is dimension `dims[d]` of the operand."""

    is_view = True

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        dims = list(attributes["dims"])
        return [[Along(dims.index(dim)) for dim in range(len(dims))]]


class ExpandRule(MappedRule):
    """Broadcast of a tensor to a larger shape."""

    is_view = True

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        return [broadcast(shapes.operands[0], shapes.output)]


class SliceRule(MappedRule):
    """Every `step`-th element from `start` along `dim`."""

    is_view = True

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        cut = Strided(attributes["dim"], attributes["start"], attributes["step"])
        return [[cut if dim == cut.dim else Along(dim) for dim in range(len(shapes.output))]]


class SelectRule(MappedRule):
    """The element `index` along `dim`, which is removed."""

    is_view = True

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        sides: list[Side] = [Along(dim) for dim in range(len(shapes.output))]
        sides.insert(attributes["dim"], Fixed(attributes["index"]))
        return [sides]


Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Adjacent dimensions of the operand that are reshaped to adjacent dimensions of the output."""

    operand: Interval  # half-open range of the operand's dimensions
    output: Interval  # half-open range of the output's dimensions


def segments(operand: Sizes, output: Sizes) -> list[Segment]:
    """Return the smallest groups of dimensions that are reshaped independently."""
    found = []
    begin = [0, 0]
    while begin[0] < len(operand) or begin[1] < len(output):
        end = [min(begin[0] + 1, len(operand)), min(begin[1] + 1, len(output))]
        while (sizes := _sizes(operand, output, begin, end))[0] != sizes[1]:
            end[sizes[0] > sizes[1]] += 1
        # Trailing dimensions of size 1 join the last group.
        for which, shape in enumerate((operand, output)):
            while end[which] < len(shape) and math.prod(shape[end[which] :]) == 1:
                end[which] += 1
        found.append(Segment((begin[0], end[0]), (begin[1], end[1])))
        begin = end
    return found


def _sizes(operand: Sizes, output: Sizes, begin: Sequence[int], end: Sequence[int]) -> tuple[int, int]:
    return math.prod(operand[begin[0] : end[0]]), math.prod(output[begin[1] : end[1]])


def flat_bounds(sizes: Sizes, box: Box) -> Interval:
    """Return the range of row-major element indices that a box spans."""
    first = last = 0
    for size, (start, end) in zip(sizes, box, strict=True):
        first, last = first * size + start, last * size + end - 1
    return first, last + 1


def box_of_flat(sizes: Sizes, flat: Interval) -> Box:
    """Return the smallest box that contains a range of row-major element indices."""
    first, last = flat[0], flat[1] - 1
    sides: list[Interval] = []
    for dim in range(len(sizes)):
        inner = math.prod(sizes[dim + 1 :])
        start, end = first // inner, last // inner
        sides.append((start, end + 1))
        first, last = first - start * inner, last - end * inner
        if start != end:
            return (*sides, *((0, size) for size in sizes[dim + 1 :]))
    return tuple(sides)


class ReshapeRule(Rule):
    """Reshape: split by all dimensions."""

    # A tile reads more elements than it outputs if its box is not a box in the operand's shape.

    kind = "reshape"
    is_view = True

    def dimensions(self, operator: PlanOperator, graph: OperatorGraph) -> tuple[Dimension, ...]:
        sample = operator.attributes.get("sample", 0)
        return tuple(
            Dimension("sample" if dim == sample else f"dimension {dim}", size, "S" if dim == sample else "A")
            for dim, size in enumerate(graph.output_shape(operator))
        )

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        return tuple(
            _read(graph.tensors[number].shape, graph.output_shape(operator), box) for number in operator.inputs
        )

    def weight_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        return tuple(_read(graph.weights[name].shape, graph.output_shape(operator), box) for name in operator.weights)


def _read(operand: Sizes, output: Sizes, box: Box) -> Box:
    sides: list[Interval] = []
    for segment in segments(operand, output):
        of_output = slice(*segment.output)
        flat = flat_bounds(output[of_output], box[of_output])
        sides += box_of_flat(operand[slice(*segment.operand)], flat)
    return tuple(sides)
