"""Matrix products, attention, embeddings, softmax and dropout."""

import math

import torch
import torch.nn.functional as F

from bow.planning.tiles.graph_builder import GraphBuilder, TensorRef, Value
from bow.planning.tiles.operators.calls import CALLS, Operands, Outputs, Tile, plain, required, tile_function
from bow.planning.tiles.operators.exported import Exported, Result, axis, not_none, translation

SOFTMAX_FLOPS = 5  # per element


@translation("linear")
def _linear(builder: GraphBuilder, exported: Exported) -> Result:
    inputs, weight, bias = exported["input"], exported["weight"], exported["bias"]
    flops = 2 * exported.size * builder.shape(weight)[1]
    return builder.add("linear", not_none(inputs, weight, bias), exported.outputs, flops=flops)


@translation("matmul", "bmm", "mm")
def _matmul(builder: GraphBuilder, exported: Exported) -> Result:
    left, right = exported.operands
    inner = builder.shape(left)[-1:]
    if min(len(builder.shape(left)), len(builder.shape(right))) < 2 or len(exported.arguments) > 2:
        return None
    return builder.add("matmul", [left, right], exported.outputs, flops=2 * exported.size * math.prod(inner))


@translation("scaled_dot_product_attention")
def _attention(builder: GraphBuilder, exported: Exported) -> Result:
    queries, keys, values = (exported[name] for name in ("query", "key", "value"))
    if exported["dropout_p"] or exported["enable_gqa"]:
        return None
    size = builder.shape(queries)[-1]
    flops = 2 * exported.size * builder.shape(keys)[-2]
    flops += flops * size // builder.shape(values)[-1]
    operands = not_none(queries, keys, values, exported["attn_mask"])
    attributes = {"causal": exported["is_causal"], "scale": exported["scale"]}
    return builder.add("attention", operands, exported.outputs, attributes, flops)


@translation("embedding")
def _embedding(builder: GraphBuilder, exported: Exported) -> Result:
    if exported["scale_grad_by_freq"] or exported["sparse"]:
        return None
    padding = exported["padding_idx"]
    attributes = {"padding_idx": None if padding < 0 else padding}
    return builder.add("embedding", [exported["indices"], exported["weight"]], exported.outputs, attributes)


@translation("softmax", "log_softmax")
def _softmax(builder: GraphBuilder, exported: Exported) -> Result:
    scores, kind = exported["self"], exported.name
    if builder.dtype(scores) != exported.outputs[0][1]:
        return None
    attributes = {"dim": axis(exported["dim"], len(exported.shape))}
    return builder.add(kind, [scores], exported.outputs, attributes, SOFTMAX_FLOPS * exported.size)


@translation("dropout", "feature_dropout")
def _dropout(builder: GraphBuilder, exported: Exported) -> Result:
    samples = exported.operands[0]  # the argument's name differs for in-place dropout
    if not exported["train"] or not exported["p"]:
        return samples
    return dropped(builder, samples, exported["p"], "feature" in exported.function)


def dropped(builder: GraphBuilder, samples: Value, p: float, of_channels: bool = False) -> TensorRef:
    shape, attributes = builder.shape(samples), {"p": p, "of_channels": of_channels}
    return builder.add_single_output("dropout", [samples], shape, attributes, 2 * math.prod(shape))


CALLS |= {
    "linear": plain(F.linear),
    "matmul": plain(torch.matmul),
    "embedding": plain(F.embedding, "padding_idx"),
    "softmax": plain(torch.softmax, "dim"),
    "log_softmax": plain(torch.log_softmax, "dim"),
}


@tile_function("attention")
def attention(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Compute attention of the tile's queries to all keys."""
    queries, keys, values, *masks = required(operands)
    mask = masks[0] if masks else None
    scale = tile.attributes["scale"]
    if tile.attributes["causal"]:
        first, end = tile.box[-2]
        rows = torch.arange(first, end, device=queries.device).unsqueeze(1)
        mask = torch.arange(keys.shape[-2], device=queries.device) <= rows
    if scale is None:
        scale = 1 / math.sqrt(queries.shape[-1])
    return (F.scaled_dot_product_attention(queries, keys, values, mask, scale=scale),)


@tile_function("dropout")
def dropout(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Apply dropout with a mask that does not depend on the split."""
    # The mask of the whole tensor is drawn from the seed, and the tile uses its part.
    (samples,) = required(operands)
    probability = tile.attributes["p"]
    generator = torch.Generator(samples.device).manual_seed(seed)
    shape = list(tile.shapes.output)
    part = tuple(slice(*side) for side in tile.box)
    if tile.attributes["of_channels"]:  # drop whole channels
        shape[2:] = [1] * len(shape[2:])
        part = part[:2]
    # Always in float32, so that the same elements are dropped in every precision.
    drawn = torch.rand(shape, generator=generator, device=samples.device)[part]
    return (samples * ((drawn >= probability).to(samples.dtype) / max(1 - probability, 1e-38)),)
