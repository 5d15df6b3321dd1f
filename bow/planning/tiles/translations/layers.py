"""Translations of layers: convolution, pooling, products, attention, norms, embeddings."""

import math
from typing import Any

from bow.planning.tiles.builder import GraphBuilder, Made, Value
from bow.planning.tiles.translations.table import Exported, Result, axis, present, repeated, translates

# Operations an element, where nothing better is known: normalising reads and writes several times.
_NORM_FLOPS = 8
_SOFTMAX_FLOPS = 5


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
    images, kind = exported["self"], exported.function.split(".")[1]
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
    images, kind = exported["self"], exported.function.split(".")[1]
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
    scores, kind = exported["self"], exported.function.split(".")[1]
    if builder.dtype(scores) != exported.outputs[0][1]:
        return None
    attributes = {"dim": axis(exported["dim"], len(exported.shape))}
    return builder.add(kind, [scores], exported.outputs, attributes, _SOFTMAX_FLOPS * exported.size)


@translates("dropout", "feature_dropout")
def _dropout(builder: GraphBuilder, exported: Exported) -> Result:
    samples: Value = exported["input"]
    if not exported["train"] or not exported["p"]:
        return samples
    attributes = {"p": exported["p"], "of_channels": "feature" in exported.function}
    return dropped(builder, samples, **attributes)


def dropped(builder: GraphBuilder, samples: Value, p: float, of_channels: bool = False) -> Made:
    """The tensor with some elements dropped."""
    outputs = [(builder.shape(samples), builder.dtype(samples))]
    attributes = {"p": p, "of_channels": of_channels}
    (made,) = builder.add("dropout", [samples], outputs, attributes, 2 * math.prod(outputs[0][0]))
    return made
