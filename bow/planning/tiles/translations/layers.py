"""Translations of operators that compute: layers, losses, reductions, pointwise operators."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from bow.planning.tiles.graph_builder import Constant, GraphBuilder, TensorRef, Value
from bow.planning.tiles.translations.table import Exported, Result, axis, present, repeated, translates

_MEAN, _SUM = 1, 2  # What PyTorch calls the reductions of losses; 0 is none

_SUFFIX = {_MEAN: "mean", _SUM: "sum"}
_SOFTMAX_FLOPS = 5


@translates(
    "where", "masked_fill", "rsub", "hardswish", "log_sigmoid", "to", "_to_copy", "clone", "contiguous", "alias"
)
def pointwise(builder: GraphBuilder, exported: Exported) -> Result:
    """An operator each of whose elements is made of those at the same place."""
    operands = exported.operands
    if len(exported.outputs) != 1 or not operands:
        return None
    return builder.add("pointwise", operands, exported.outputs, exported.by_name(), exported.size)


@translates("detach")
def _detach(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    return None if isinstance(tensor, Constant) else builder.detached(tensor)


@translates("mean", "sum", "amax", "amin", "var", "std")
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


@translates(
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "soft_margin_loss"
)
def _pointwise_loss(builder: GraphBuilder, exported: Exported) -> Result:
    reduction = exported["reduction"]
    shapes = [builder.shape(value) for value in exported.operands]
    shape, dtype = tuple(torch.broadcast_shapes(*shapes)), exported.outputs[0][1]  # type: ignore[no-untyped-call]
    attributes = exported.by_name(reduction=0)
    (losses,) = builder.add("pointwise", exported.operands, [(shape, dtype)], attributes, 4 * math.prod(shape))
    return losses if reduction == 0 else total(builder, losses, _SUFFIX[reduction], dtype)


@translates("cross_entropy_loss", "nll_loss_nd", "nll_loss")
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
    flops = _SOFTMAX_FLOPS * math.prod(shape)
    (losses,) = builder.add("cross_entropy", [scores, classes], rows, attributes, flops)
    if exported["reduction"] == 0:
        return losses
    if exported["reduction"] == _SUM:
        return total(builder, losses, "sum", dtype)
    builder.name = f"{name}.mean"
    return builder.add("counted_mean", [losses, classes], [((), dtype)], {"ignore_index": ignored})


def total(builder: GraphBuilder, tensor: Value, name: str, dtype: torch.dtype) -> TensorRef:
    """The sum or mean of all elements: first of each row, where rows can be on different devices, then of all."""
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


_NORM_FLOPS = 8  # Operations an element, where nothing better is known: normalising reads and writes several times


@translates("conv1d", "conv2d", "conv3d")
def _convolution(builder: GraphBuilder, exported: Exported) -> Result:
    images, weight, bias = exported["input"], exported["weight"], exported["bias"]
    kernel = builder.shape(weight)[2:]
    rank = len(kernel)
    if len(builder.shape(images)) != rank + 2:
        return None
    dilation, stride = repeated(exported["dilation"], rank), repeated(exported["stride"], rank)
    padding: Any = exported["padding"]
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if any(each % 2 for each in total):
            return None
        padding = [each // 2 for each in total]
    attributes = {
        "stride": stride,
        "padding": repeated(padding, rank),
        "dilation": dilation,
        "groups": exported["groups"],
    }
    flops = 2 * exported.size * math.prod(builder.shape(weight)[1:])
    return builder.add(f"conv{rank}d", present(images, weight, bias), exported.outputs, attributes, flops)


@translates("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
def _pooling(builder: GraphBuilder, exported: Exported) -> Result:
    images, kind = exported["self"], exported.name
    rank = int(kind[-2])
    if len(builder.shape(images)) != rank + 2:
        return None
    kernel = repeated(exported["kernel_size"], rank)
    attributes: dict[str, Any] = {
        "kernel": kernel,
        "stride": repeated(exported["stride"] or kernel, rank),
        "padding": repeated(exported["padding"], rank),
        "dilation": repeated(exported.arguments.get("dilation", 1), rank),
    }
    if kind.startswith("avg"):
        attributes["count_padding"] = exported["count_include_pad"]
        attributes["divisor"] = exported.arguments.get("divisor_override")
    return builder.add(kind, [images], exported.outputs, attributes, exported.size * math.prod(kernel))


@translates(*(f"adaptive_{what}_pool{rank}d" for what in ("max", "avg") for rank in (1, 2, 3)))
def _adaptive_pooling(builder: GraphBuilder, exported: Exported) -> Result:
    images, kind = exported["self"], exported.name
    shape = builder.shape(images)
    if len(shape) != int(kind[-2]) + 2:
        return None
    # Where the maxima lie is a second output, which a tile would count from its own corner.
    return builder.add(kind, [images], exported.outputs[:1], flops=math.prod(shape))


@translates("linear")
def _linear(builder: GraphBuilder, exported: Exported) -> Result:
    inputs, weight, bias = exported["input"], exported["weight"], exported["bias"]
    flops = 2 * exported.size * builder.shape(weight)[1]
    return builder.add("linear", present(inputs, weight, bias), exported.outputs, flops=flops)


@translates("matmul", "bmm", "mm")
def _matmul(builder: GraphBuilder, exported: Exported) -> Result:
    left, right = exported.operands
    inner = builder.shape(left)[-1:]
    if min(len(builder.shape(left)), len(builder.shape(right))) < 2 or len(exported.arguments) > 2:
        return None
    return builder.add("matmul", [left, right], exported.outputs, flops=2 * exported.size * math.prod(inner))


@translates("scaled_dot_product_attention")
def _attention(builder: GraphBuilder, exported: Exported) -> Result:
    queries, keys, values = (exported[name] for name in ("query", "key", "value"))
    if exported["dropout_p"] or exported["enable_gqa"]:
        return None
    size = builder.shape(queries)[-1]
    flops = 2 * exported.size * builder.shape(keys)[-2]
    flops += flops * size // builder.shape(values)[-1]
    operands = present(queries, keys, values, exported["attn_mask"])
    attributes = {"causal": exported["is_causal"], "scale": exported["scale"]}
    return builder.add("attention", operands, exported.outputs, attributes, flops)


@translates("embedding")
def _embedding(builder: GraphBuilder, exported: Exported) -> Result:
    if exported["scale_grad_by_freq"] or exported["sparse"]:
        return None
    padding = exported["padding_idx"]
    attributes = {"padding_idx": None if padding < 0 else padding}
    return builder.add("embedding", [exported["indices"], exported["weight"]], exported.outputs, attributes)


@translates("batch_norm")
def _batch_norm(builder: GraphBuilder, exported: Exported) -> Result:
    samples, affine = exported["input"], present(exported["weight"], exported["bias"])
    mean, variance = exported["running_mean"], exported["running_var"]
    flops = _NORM_FLOPS * exported.size
    if not exported["training"]:
        operands = [samples, mean, variance, *affine]
        return builder.add("frozen_batch_norm", operands, exported.outputs, {"eps": exported["eps"]}, flops)
    attributes: dict[str, Any] = {"eps": exported["eps"], "momentum": exported["momentum"]}
    if mean is not None:
        attributes["running"] = {"running_mean": mean.key, "running_var": variance.key}
    return builder.add("batch_norm", [samples, *affine], exported.outputs, attributes, flops)


@translates("layer_norm")
def _layer_norm(builder: GraphBuilder, exported: Exported) -> Result:
    attributes = {"num_dims": len(exported["normalized_shape"]), "eps": exported["eps"]}
    operands = present(exported["input"], exported["weight"], exported["bias"])
    return builder.add("layer_norm", operands, exported.outputs, attributes, _NORM_FLOPS * exported.size)


@translates("softmax", "log_softmax")
def _softmax(builder: GraphBuilder, exported: Exported) -> Result:
    scores, kind = exported["self"], exported.name
    if builder.dtype(scores) != exported.outputs[0][1]:
        return None
    attributes = {"dim": axis(exported["dim"], len(exported.shape))}
    return builder.add(kind, [scores], exported.outputs, attributes, _SOFTMAX_FLOPS * exported.size)


@translates("dropout", "feature_dropout")
def _dropout(builder: GraphBuilder, exported: Exported) -> Result:
    samples: Value = exported["input"]
    if not exported["train"] or not exported["p"]:
        return samples
    return dropped(builder, samples, exported["p"], "feature" in exported.function)


def dropped(builder: GraphBuilder, samples: Value, p: float, of_channels: bool = False) -> TensorRef:
    """The tensor with some elements dropped."""
    shape, attributes = builder.shape(samples), {"p": p, "of_channels": of_channels}
    return builder.make("dropout", [samples], shape, attributes, 2 * math.prod(shape))
