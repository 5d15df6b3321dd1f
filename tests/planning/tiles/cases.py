"""One call of each kind of operator, as PyTorch exports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from bow.planning.problem.box import whole
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.rules.rule import places
from bow.planning.tiles.graph_builder import GraphBuilder, TensorRef, Weight
from bow.planning.tiles.operators.calls import TRANSLATIONS, Operands, Outputs, Tile, exported_call
from bow.planning.tiles.operators.losses import pointwise
from bow.planning.tiles.regions import region

aten: Any = torch.ops.aten


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def numbers(*shape: int, most: int = 7) -> Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(0))


def weight(*shape: int, seed: int = 5) -> nn.Parameter:
    return nn.Parameter(randn(*shape, seed=seed))


CASES: dict[str, tuple[Any, Sequence[Any]]] = {
    "conv1d": (aten.conv1d.default, [randn(4, 3, 11), weight(5, 3, 3), weight(5), [1], [1]]),
    "conv2d": (aten.conv2d.default, [randn(4, 3, 9, 7), weight(5, 3, 3, 3), weight(5), [1, 1], [1, 1]]),
    "conv2d strided, dilated": (
        aten.conv2d.default,
        [randn(4, 3, 11, 9), weight(5, 3, 3, 3), weight(5), [2, 2], [3, 2], [2, 2]],
    ),
    "conv2d, even kernel": (aten.conv2d.default, [randn(3, 2, 11, 9), weight(3, 2, 2, 4), None, [3, 1], [0, 1]]),
    "conv2d in groups": (
        aten.conv2d.default,
        [randn(4, 6, 5, 5), weight(9, 2, 3, 3), weight(9), [1, 1], [1, 1], [1, 1], 3],
    ),
    "conv2d by channel": (
        aten.conv2d.default,
        [randn(2, 6, 5, 5), weight(6, 1, 3, 3), None, [1, 1], [0, 0], [1, 1], 6],
    ),
    "conv2d, same": (aten.conv2d.padding, [randn(2, 2, 6, 6), weight(3, 2, 3, 3), None, [1, 1], "same", [2, 2]]),
    "conv3d": (aten.conv3d.default, [randn(2, 2, 4, 5, 3), weight(3, 2, 2, 2, 2)]),
    "conv2d, windows in padding": (
        aten.conv2d.default,
        [randn(2, 2, 3, 3), weight(3, 2, 1, 1), weight(3), [1, 1], [2, 2]],
    ),
    "max_pool1d": (aten.max_pool1d.default, [randn(4, 3, 11), [3], [2], [1]]),
    "max_pool2d": (aten.max_pool2d.default, [randn(4, 3, 11, 8), [3, 3], [2, 2], [1, 1]]),
    "max_pool2d, ties": (aten.max_pool2d.default, [randn(4, 3, 11, 8).round().relu(), [3, 3], [2, 2], [1, 1]]),
    "max_pool2d, rounding up": (
        aten.max_pool2d.default,
        [randn(4, 3, 8, 9), [3, 3], [2, 2], [0, 0], [1, 1], True],
    ),
    "max_pool2d, dilated": (aten.max_pool2d.default, [randn(4, 3, 8, 9), [2, 2], [1, 1], [0, 0], [3, 3]]),
    "avg_pool1d": (aten.avg_pool1d.default, [randn(4, 3, 11), [3], [2], [1]]),
    "avg_pool2d": (aten.avg_pool2d.default, [randn(4, 3, 7, 8), [3, 3], [1, 1], [1, 1]]),
    "avg_pool2d, inside only": (
        aten.avg_pool2d.default,
        [randn(4, 3, 8, 8), [3, 3], [2, 2], [1, 1], True, False],
    ),
    "avg_pool2d, rounding up": (aten.avg_pool2d.default, [randn(4, 3, 8, 8), [3, 3], [2, 2], [1, 1], True]),
    "avg_pool2d by a divisor": (
        aten.avg_pool2d.default,
        [randn(4, 3, 8, 8), [3, 3], [2, 2], [1, 1], False, True, 3],
    ),
    "adaptive_avg_pool2d": (aten.adaptive_avg_pool2d.default, [randn(4, 3, 8, 6), [4, 2]]),
    "adaptive_avg_pool2d, uneven": (aten.adaptive_avg_pool2d.default, [randn(4, 3, 7, 9), [3, 4]]),
    "adaptive_avg_pool1d, uneven": (aten.adaptive_avg_pool1d.default, [randn(4, 3, 7), [4]]),
    "adaptive_max_pool2d, uneven": (aten.adaptive_max_pool2d.default, [randn(4, 3, 7, 9), [3, 4]]),
    "adaptive_max_pool1d": (aten.adaptive_max_pool1d.default, [randn(4, 3, 8), [4]]),
    "linear": (aten.linear.default, [randn(6, 3, 5), weight(7, 5), weight(7)]),
    "linear without bias": (aten.linear.default, [randn(6, 5), weight(7, 5)]),
    "matmul": (aten.matmul.default, [randn(3, 1, 4, 5), randn(2, 5, 6, seed=2)]),
    "matmul by a parameter": (aten.matmul.default, [randn(6, 5), weight(5, 4)]),
    "bmm": (aten.bmm.default, [randn(3, 4, 5), randn(3, 5, 2, seed=2)]),
    "attention": (
        aten.scaled_dot_product_attention.default,
        [randn(3, 2, 5, 4), randn(3, 2, 6, 4, seed=2), randn(3, 2, 6, 3, seed=3)],
    ),
    "attention, causal": (
        aten.scaled_dot_product_attention.default,
        [randn(3, 2, 5, 4), randn(3, 2, 5, 4, seed=2), randn(3, 2, 5, 4, seed=3), None, 0.0, True],
    ),
    "attention, masked": (
        aten.scaled_dot_product_attention.default,
        [randn(3, 2, 5, 4), randn(3, 2, 6, 4, seed=2), randn(3, 2, 6, 4, seed=3), randn(3, 1, 5, 6, seed=4)],
    ),
    "embedding": (aten.embedding.default, [weight(7, 5), numbers(4, 3), 2]),
    "lstm_cell": (
        aten.lstm_cell.default,
        [
            randn(4, 5),
            [randn(4, 6, seed=1), randn(4, 6, seed=2)],
            weight(24, 5),
            weight(24, 6, seed=6),
            weight(24, seed=7),
            weight(24, seed=8),
        ],
    ),
    "lstm_cell without biases": (
        aten.lstm_cell.default,
        [randn(4, 5), [randn(4, 6, seed=1), randn(4, 6, seed=2)], weight(24, 5), weight(24, 6, seed=6)],
    ),
    "batch_norm": (
        aten.batch_norm.default,
        [randn(4, 5, 3, 3), weight(5), weight(5, seed=6), None, None, True, 0.1, 1e-5, False],
    ),
    "batch_norm without weights": (
        aten.batch_norm.default,
        [randn(8, 5), None, None, None, None, True, 0.1, 1e-5, False],
    ),
    "batch_norm, mean far from 0": (
        aten.batch_norm.default,
        [randn(8, 5) + 1e4, weight(5), weight(5, seed=6), None, None, True, 0.1, 1e-5, False],
    ),
    "batch_norm, frozen": (
        aten.batch_norm.default,
        [
            randn(8, 5, 2),
            weight(5),
            weight(5, seed=6),
            randn(5, seed=7),
            randn(5, seed=8).abs(),
            False,
            0.1,
            1e-5,
            False,
        ],
    ),
    "layer_norm": (aten.layer_norm.default, [randn(4, 2, 3, 5), [3, 5], weight(3, 5), weight(3, 5, seed=6)]),
    "softmax": (aten.softmax.int, [randn(4, 5, 3), 1]),
    "log_softmax": (aten.log_softmax.int, [randn(4, 5, 3), -1]),
    "cross_entropy": (aten.cross_entropy_loss.default, [randn(6, 7), numbers(6), None, 0, 3, 0.1]),
    "cross_entropy of images": (aten.cross_entropy_loss.default, [randn(4, 7, 3, 2), numbers(4, 3, 2), None, 0]),
    "nll": (aten.nll_loss_nd.default, [randn(6, 7), numbers(6), None, 0]),
    "gelu": (aten.gelu.default, [randn(4, 5, 3)]),
    "leaky_relu": (aten.leaky_relu.default, [randn(4, 5, 3), 0.1]),
    "where": (aten.where.self, [randn(4, 5) > 0, randn(4, 5), randn(1, 5, seed=2)]),
    "masked_fill": (aten.masked_fill.Scalar, [randn(4, 5, 3), randn(4, 5, 3) > 0, -1.5]),
    "add, stretched": (aten.add.Tensor, [randn(4, 1, 5), weight(3, 1)]),
    "add, the weight first": (aten.sub.Tensor, [weight(3, 5), randn(4, 3, 5)]),
    "clone": (aten.clone.default, [randn(4, 3)]),
    "mse": (aten.mse_loss.default, [randn(4, 3), randn(4, 3, seed=2), 0]),
    "concat": (aten.cat.default, [[randn(4, 3, 5), randn(4, 2, 5, seed=2), randn(4, 4, 5, seed=3)], 1]),
    "stack": (aten.stack.default, [[randn(4, 3), randn(4, 3, seed=2), randn(4, 3, seed=3)], 1]),
    "flatten": (aten.flatten.using_ints, [randn(4, 3, 2, 5), 1]),
    "flatten samples": (aten.flatten.using_ints, [randn(4, 3, 5), 0, 1]),
    "reshape": (aten.reshape.default, [randn(4, 6, 5), [6, 4, 5]]),
    "reshape, few": (aten.reshape.default, [randn(4, 6), [2, 1, 2, 2, 3]]),
    "unflatten": (aten.unflatten.int, [randn(2, 12), 1, [3, 4]]),
    "unsqueeze": (aten.unsqueeze.default, [randn(4, 5), 1]),
    "transpose": (aten.transpose.int, [randn(4, 3, 5), 0, -1]),
    "permute": (aten.permute.default, [randn(4, 3, 5), [2, 0, 1]]),
    "t": (aten.t.default, [randn(4, 3)]),
    "expand": (aten.expand.default, [randn(3, 1), [4, 3, 5]]),
    "slice": (aten.slice.Tensor, [randn(4, 9), 1, 1, -1, 3]),
    "select": (aten.select.int, [randn(4, 6, 7), 1, -1]),
    "pad": (aten.pad.default, [randn(4, 3, 5), [2, -1, 0, 3], "constant", 0.5]),
    "pad, more than there is": (aten.constant_pad_nd.default, [randn(4, 2), [7, 5]]),
    "dropout": (aten.dropout.default, [randn(8, 5), 0.4, True]),
    "dropout of channels": (aten.feature_dropout.default, [randn(4, 6, 3, 3), 0.4, True]),
    "mean": (aten.mean.dim, [randn(4, 3, 5), [1, -1], True]),
    "sum": (aten.sum.dim_IntList, [randn(4, 3, 5), [1]]),
    "amax": (aten.amax.default, [randn(4, 3, 5), [-1]]),
    "var": (aten.var.correction, [randn(4, 3, 5), [1]]),
}
"""By name: an operator, and what it is called with; parameters are weights."""


STATISTICS = {"batch_norm, frozen": (1, 2)}
"""The inputs that no gradient flows back to."""


@dataclass(frozen=True)
class Example:
    """A call as an operator of bow's, with what it reads.

    Attributes:
        graph: of this one operator.
        operands: what it reads, in the order of its own arguments.
    """

    function: Any
    arguments: Sequence[Any]
    graph: OperatorGraph
    operands: list[Tensor]

    def by_pytorch(self, tile: Tile, operands: Operands, seed: int) -> Outputs:
        """What PyTorch makes of other operands."""
        others = {}
        for own, part, box, shape in zip(self._sources(), operands, tile.operands, tile.shapes.operands, strict=True):
            assert part is not None
            assert box is not None
            around = torch.zeros(shape, dtype=part.dtype)  # a tile need not read all that there is
            region(around, box, whole(shape)).copy_(part)
            others[id(own)] = around.reshape(own.shape)

        def other(argument: Any) -> Any:
            return others.get(id(argument), argument)

        made = self.function(*tree_map(other, list(self.arguments)))
        return (made,) if isinstance(made, Tensor) else tuple(made)[: len(self.graph.operators[0].outputs)]

    def _sources(self) -> list[Tensor]:
        """The arguments that the operands come from."""
        (operator,) = self.graph.operators
        tensors = [leaf for leaf in tree_leaves(list(self.arguments)) if isinstance(leaf, Tensor)]
        weights = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
        inputs = [tensor for tensor in tensors if not isinstance(tensor, nn.Parameter)]
        return [
            inputs[operator.inputs[index]] if kind == "input" else weights[int(operator.weights[index])]
            for kind, index in places(operator)
        ]


def example(name: str) -> Example:
    """A case, translated."""
    function, arguments = CASES[name]
    tensors = [leaf for leaf in tree_leaves(list(arguments)) if isinstance(leaf, Tensor)]
    weights = {str(number): each for number, each in enumerate(t for t in tensors if isinstance(t, nn.Parameter))}
    inputs = [tensor for tensor in tensors if not isinstance(tensor, nn.Parameter)]
    builder = GraphBuilder(nn.ParameterDict(weights), inputs, requires_grad=True)
    names = {id(each): Weight(key) for key, each in weights.items()}
    values = {**names, **{id(tensor): TensorRef(number) for number, tensor in zip(builder.batch, inputs, strict=True)}}
    given = tree_map(lambda leaf: values.get(id(leaf), leaf), list(arguments))
    call = exported_call(str(function), function, given, {}, function(*arguments))
    made: Any = TRANSLATIONS.get(str(function).split(".")[1], pointwise)(builder, call)
    graph = builder.build(made[0] if isinstance(made, tuple) else made)
    still = {number: replace(graph.tensors[number], differentiable=False) for number in STATISTICS.get(name, ())}
    graph = replace(graph, tensors={**graph.tensors, **still})
    shaped = Example(function, arguments, graph, [])
    (operator,) = graph.operators
    shapes = [
        graph.tensors[operator.inputs[index]].shape if kind == "input" else graph.weights[operator.weights[index]].shape
        for kind, index in places(operator)
    ]
    operands = [source.detach().reshape(shape) for source, shape in zip(shaped._sources(), shapes, strict=True)]
    return Example(function, arguments, graph, operands)
