"""Pointwise operators, reductions and losses."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from bow.planning.tiles.graph_builder import Constant, GraphBuilder, TensorRef, Value
from bow.planning.tiles.operators.calls import (
    Exported,
    Operands,
    Outputs,
    Result,
    Tile,
    axis,
    required,
    tile_function,
    translation,
)
from bow.planning.tiles.operators.layers import SOFTMAX_FLOPS

_MEAN, _SUM = 1, 2  # PyTorch's codes of loss reductions; 0 is none
_SUFFIX = {_MEAN: "mean", _SUM: "sum"}


@translation(
    "where", "masked_fill", "rsub", "hardswish", "log_sigmoid", "to", "_to_copy", "clone", "contiguous", "alias"
)
def pointwise(builder: GraphBuilder, exported: Exported) -> Result:
    operands = exported.operands
    if len(exported.outputs) != 1 or not operands:
        return None
    return builder.add("pointwise", operands, exported.outputs, exported.by_name(), exported.size)


@translation("detach")
def _detach(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    return None if isinstance(tensor, Constant) else builder.add_detach(tensor)


@translation("mean", "sum", "amax", "amin", "var", "std")
def _reduction(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    shape = builder.shape(tensor)
    given = exported.arguments.get("dim")
    dims = sorted(axis(dim, len(shape)) for dim in ([given] if isinstance(given, int) else given or range(len(shape))))
    name = exported.name
    if len(dims) == len(shape) and len(shape) > 1 and name in ("mean", "sum") and not exported.arguments.get("keepdim"):
        return total(builder, tensor, name, exported.outputs[0][1])
    attributes = {"dims": dims, "keepdim": bool(exported.arguments.get("keepdim"))}
    flops = float(math.prod(shape))
    return builder.add("reduction", [tensor], exported.outputs, {**attributes, **exported.by_name()}, flops)


@translation(
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "soft_margin_loss"
)
def _pointwise_loss(builder: GraphBuilder, exported: Exported) -> Result:
    reduction = exported["reduction"]
    shapes = [builder.shape(value) for value in exported.operands]
    shape, dtype = tuple(torch.broadcast_shapes(*shapes)), exported.outputs[0][1]  # type: ignore[no-untyped-call]
    attributes = exported.by_name(reduction=0)
    (losses,) = builder.add("pointwise", exported.operands, [(shape, dtype)], attributes, 4 * math.prod(shape))
    return losses if reduction == 0 else total(builder, losses, _SUFFIX[reduction], dtype)


@translation("cross_entropy_loss", "nll_loss_nd", "nll_loss")
def _cross_entropy(builder: GraphBuilder, exported: Exported) -> Result:
    scores, classes = exported["self"], exported["target"]
    shape = builder.shape(scores)
    if len(shape) < 2 or builder.dtype(classes).is_floating_point or exported["weight"] is not None:
        return None
    dtype, ignored = exported.outputs[0][1], exported["ignore_index"]
    attributes = {
        "ignore_index": ignored,
        "is_logarithm": exported.function.startswith("aten.nll"),
        "label_smoothing": exported.arguments.get("label_smoothing", 0.0),
    }
    rows = [((shape[0], *shape[2:]), dtype)]
    name = builder.name
    flops = SOFTMAX_FLOPS * math.prod(shape)
    (losses,) = builder.add("cross_entropy", [scores, classes], rows, attributes, flops)
    if exported["reduction"] == 0:
        return losses
    if exported["reduction"] == _SUM:
        return total(builder, losses, "sum", dtype)
    builder.name = f"{name}.mean"
    return builder.add("counted_mean", [losses, classes], [((), dtype)], {"ignore_index": ignored})


def total(builder: GraphBuilder, tensor: Value, name: str, dtype: torch.dtype) -> TensorRef:
    """Add the sum or mean of all elements in two stages: of each row, so that rows can be split, then of all rows."""
    base, shape = builder.name, builder.shape(tensor)
    if len(shape) > 1:
        builder.name = f"{base}.{name}_of_rows"
        tensor = _reduced(builder, tensor, name, range(1, len(shape)), dtype)
    builder.name = f"{base}.{name}"
    return _reduced(builder, tensor, name, range(len(builder.shape(tensor))), dtype)


def _reduced(builder: GraphBuilder, tensor: Value, name: str, dims: Sequence[int], dtype: torch.dtype) -> TensorRef:
    shape = builder.shape(tensor)
    overload = {"mean": "aten.mean.dim", "sum": "aten.sum.dim_IntList"}[name]
    attributes = {
        "dims": list(dims),
        "keepdim": False,
        "function": overload,
        "arguments": [{"operand": 0}, list(dims), False],
        "keywords": {"dtype": {"torch": str(dtype).removeprefix("torch.")}},
    }
    kept = tuple(size for dim, size in enumerate(shape) if dim not in dims)
    (made,) = builder.add("reduction", [tensor], [(kept, dtype)], attributes, math.prod(shape))
    return made


@tile_function("cross_entropy")
def cross_entropy(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Compute the loss of each sample and position; 0 for the ignored class."""
    scores, classes = required(operands)
    ignored = tile.attributes["ignore_index"]
    if tile.attributes["is_logarithm"]:
        return (F.nll_loss(scores, classes, reduction="none", ignore_index=ignored),)
    smoothing = tile.attributes["label_smoothing"]
    return (F.cross_entropy(scores, classes, reduction="none", ignore_index=ignored, label_smoothing=smoothing),)


@tile_function("counted_mean")
def counted_mean(tile: Tile, operands: Operands, seed: int) -> Outputs:
    losses, classes = required(operands)
    return (losses.sum() / (classes != tile.attributes["ignore_index"]).sum(),)
