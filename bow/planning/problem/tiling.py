"""What the tiles of an operator read and make, once its degrees are known."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from bow.planning.problem.box import Box, volume
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.partition import Split, tiles_of
from bow.planning.rules.rule import Rules

SUM_ITEMSIZE = 4  # bytes of an element of what tiles sum in the middle of an operator


@dataclass(frozen=True)
class Tiling:
    """An operator's tiles, wherever they are computed."""

    degrees: tuple[int, ...]
    boxes: tuple[Box, ...]  # by tile: what it makes of the first output
    outputs: tuple[tuple[Box, ...], ...]  # by output, by tile: what the tile makes of it
    inputs: tuple[tuple[Box | None, ...], ...]  # by input, by tile: what the tile reads of it; None: nothing
    weights: tuple[tuple[Box, ...], ...]  # by tile, by weight: what the tile reads of it
    # by tile: the number of the sum that it adds to in the middle of the operator; () where nothing is summed
    sums: tuple[int, ...]
    sum_bytes: tuple[int, ...]  # by sum: how much is summed
    output_bytes: tuple[int, ...]  # by tile: what all that it makes takes; nothing where the operator is a view
    gradient_bytes: tuple[int, ...]  # by tile: what the gradients of that take

    @property
    def num_tiles(self) -> int:
        return len(self.boxes)


class Tilings:
    """Tilings of a graph's operators, each worked out once: operators that are alike share them.

    Alike are operators of equal kind, attributes, sizes and work, such as the steps of an unrolled layer.
    """

    def __init__(self, graph: OperatorGraph, rules: Rules) -> None:
        self._graph, self._rules = graph, rules
        numbers: dict[str, int] = {}
        signatures = [_signature(graph, operator) for operator in graph.operators]
        self.alike = tuple(numbers.setdefault(signature, len(numbers)) for signature in signatures)
        """By operator: a number that it has in common with those that are alike."""
        self._found: dict[tuple[int, tuple[int, ...]], Tiling] = {}

    def of(self, operator: int, degrees: tuple[int, ...]) -> Tiling:
        key = self.alike[operator], degrees
        if key not in self._found:
            self._found[key] = _tiling(self._graph, self._graph.operators[operator], degrees, self._rules)
        return self._found[key]


def _tiling(graph: OperatorGraph, operator: PlanOperator, degrees: tuple[int, ...], rules: Rules) -> Tiling:
    rule = rules.of(operator)
    boxes = tuple(tiles_of(graph, operator, Split(degrees, ())))
    outputs = tuple(zip(*(rule.output_boxes(operator, graph, box) for box in boxes), strict=True))
    inputs = tuple(zip(*(rule.input_boxes(operator, graph, box) for box in boxes), strict=True))
    made = [graph.tensors[number] for number in operator.outputs]
    sums = rule.sums(operator)
    summed = [rule.sum_box(operator, graph, box) for box in boxes] if sums else []
    numbers = {box: number for number, box in enumerate(dict.fromkeys(summed))}

    def bytes_of(tile: int, which: Sequence[bool]) -> int:
        parts = zip(outputs, made, which, strict=True)
        return sum(volume(of[tile]) * tensor.itemsize for of, tensor, counts in parts if counts)

    return Tiling(
        degrees=degrees,
        boxes=boxes,
        outputs=outputs,
        inputs=inputs,
        weights=tuple(rule.weight_boxes(operator, graph, box) for box in boxes),
        sums=tuple(numbers[box] for box in summed),
        sum_bytes=tuple(len(sums) * volume(box) * SUM_ITEMSIZE for box in numbers),
        output_bytes=tuple(bytes_of(tile, [not rule.is_view for _ in made]) for tile in range(len(boxes))),
        gradient_bytes=tuple(bytes_of(tile, [tensor.differentiable for tensor in made]) for tile in range(len(boxes))),
    )


def _signature(graph: OperatorGraph, operator: PlanOperator) -> str:
    """All that rules and costs look at."""
    tensors = [graph.tensors[number] for number in (*operator.inputs, *operator.outputs)]
    weights = [graph.weights[name] for name in operator.weights]
    described = [(tensor.shape, tensor.itemsize, tensor.differentiable) for tensor in (*tensors, *weights)]
    sizes = len(operator.inputs), len(operator.outputs), operator.flops
    return json.dumps([operator.kind, dict(operator.attributes), sizes, described], sort_keys=True, default=str)
