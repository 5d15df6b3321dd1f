"""What a tile computes and moves, whatever it runs on."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bow.planning.problem.box import Box
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.rules.rule import Rules

GATHERS = frozenset({"embedding"})
"""Kinds of operators that read only a few rows of their weights; the gradient has all of them."""

KERNELS = {"lstm_cell": 3, "attention": 4, "batch_norm": 2, "layer_norm": 2, "cross_entropy": 2}
"""How many kernels the forward pass of an operator starts, where it is not one."""


@dataclass(frozen=True)
class PassWork:
    """What a forward or backward pass of a tile amounts to.

    Attributes:
        flops: floating-point operations.
        num_bytes: read and written.
        kernels: how many are started; 0: there is nothing to do.
    """

    flops: float
    num_bytes: int
    kernels: int


@dataclass(frozen=True)
class TileWork:
    """What a tile amounts to.

    Attributes:
        forward: of the forward pass.
        backward: of the gradients of the inputs and of the weights.
        outputs: how many elements the tile makes.
    """

    forward: PassWork
    backward: PassWork
    outputs: int


@dataclass(frozen=True)
class TileShapes:
    """The sizes of all that a tile reads and makes.

    Attributes:
        inputs: by input; None: nothing of it.
        weights: by weight.
        outputs: by output.
    """

    inputs: tuple[tuple[int, ...] | None, ...]
    weights: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]


def tile_shapes(graph: OperatorGraph, rules: Rules, operator: PlanOperator, box: Box) -> TileShapes:
    """The sizes of a tile's tensors, by its operator's rule."""
    rule = rules.of(operator)
    return TileShapes(
        tuple(None if part is None else _sizes(part) for part in rule.input_boxes(operator, graph, box)),
        tuple(_sizes(part) for part in rule.weight_boxes(operator, graph, box)),
        tuple(_sizes(part) for part in rule.output_boxes(operator, graph, box)),
    )


def tile_key(graph: OperatorGraph, rules: Rules, operator: PlanOperator, box: Box) -> str:
    """What tiles have in common that take the same time: their operator's kind and attributes, and all sizes."""
    shapes = tile_shapes(graph, rules, operator, box)
    of_inputs = [graph.tensors[number] for number in operator.inputs]
    return json.dumps(
        [
            operator.kind,
            dict(operator.attributes),
            shapes.inputs,
            [[tensor.itemsize, tensor.differentiable] for tensor in of_inputs],
            shapes.weights,
            shapes.outputs,
        ],
        sort_keys=True,
        default=str,
    )


def tile_work(graph: OperatorGraph, rules: Rules, operator: PlanOperator, box: Box) -> TileWork:
    """What a tile computes and moves.

    The backward pass reads the output's gradient once for the gradient of the inputs and once for that of the weights,
    and each of the two is half of its operations and kernels; what no gradient flows back through has no part in it.
    """
    rule = rules.of(operator)
    shapes = tile_shapes(graph, rules, operator, box)
    outputs = sum(math.prod(shape) for shape in shapes.outputs)
    if rule.is_view:
        return TileWork(PassWork(0.0, 0, 0), PassWork(0.0, 0, 0), outputs)
    tensors = [graph.tensors[number] for number in operator.inputs]
    read = _bytes(shapes.inputs, tensors)
    made = _bytes(shapes.outputs, [graph.tensors[number] for number in operator.outputs])
    weights = _bytes(shapes.weights, [graph.weights[name] for name in operator.weights])
    flops, kernels = rule.flops(operator, graph, box), KERNELS.get(operator.kind, 1)
    looked_at = made if operator.kind in GATHERS else weights
    flowing = [shape if tensor.differentiable else None for shape, tensor in zip(shapes.inputs, tensors, strict=True)]
    to_inputs = any(shape is not None for shape in flowing)
    gradients = to_inputs + bool(operator.weights)
    share = gradients / (1 + bool(operator.weights))
    back = gradients * made + read + looked_at + _bytes(flowing, tensors) + weights
    return TileWork(
        PassWork(flops, read + looked_at + made, kernels),
        PassWork(flops * rule.backward_ratio(operator) * share, back if gradients else 0, kernels * gradients),
        outputs,
    )


def _sizes(box: Box) -> tuple[int, ...]:
    return tuple(end - start for start, end in box)


def _bytes(shapes: Iterable[Sequence[int] | None], tensors: Sequence[TensorShape]) -> int:
    return sum(
        math.prod(shape) * tensor.itemsize for shape, tensor in zip(shapes, tensors, strict=True) if shape is not None
    )
