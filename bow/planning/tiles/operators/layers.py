"""Layers with weights, attention, softmax and dropout; LSTMs are unrolled into one cell per layer and time step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from bow.planning.tiles.graph_builder import GraphBuilder, TensorRef, Value, Weight, filled
from bow.planning.tiles.operators.calls import (
    CALLS,
    Exported,
    Operands,
    Outputs,
    Result,
    SummedCall,
    Tile,
    axis,
    not_none,
    plain,
    required,
    tile_function,
    translation,
)
from bow.planning.tiles.operators.views import concatenated, selected, stacked

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


_NORM_FLOPS = 8  # per element, an estimate


def _affine(builder: GraphBuilder, exported: Exported) -> list[Value]:
    """Return a norm's weight and bias, of which a tile takes the first as the weight: ones for a bias alone."""
    weight, bias = exported["weight"], exported["bias"]
    if weight is None and bias is not None:
        weight = filled(torch.empty(builder.shape(bias), dtype=builder.dtype(bias), device="meta"), 1.0)
    return not_none(weight, bias)


@translation("batch_norm")
def _batch_norm(builder: GraphBuilder, exported: Exported) -> Result:
    samples, affine = exported["input"], _affine(builder, exported)
    mean, variance = exported["running_mean"], exported["running_var"]
    flops = _NORM_FLOPS * exported.size
    if not exported["training"]:
        operands = [samples, mean, variance, *affine]
        return builder.add("frozen_batch_norm", operands, exported.outputs, {"eps": exported["eps"]}, flops)
    attributes: dict[str, Any] = {"eps": exported["eps"], "momentum": exported["momentum"]}
    if mean is not None:
        attributes["running"] = {"running_mean": mean.key, "running_var": variance.key}
    return builder.add("batch_norm", [samples, *affine], exported.outputs, attributes, flops)


@translation("layer_norm")
def _layer_norm(builder: GraphBuilder, exported: Exported) -> Result:
    attributes = {"num_dims": len(exported["normalized_shape"]), "eps": exported["eps"]}
    operands = [exported["input"], *_affine(builder, exported)]
    return builder.add("layer_norm", operands, exported.outputs, attributes, _NORM_FLOPS * exported.size)


@tile_function("layer_norm")
def layer_norm(tile: Tile, operands: Operands, seed: int) -> Outputs:
    samples, *affine = required(operands)
    weight, bias = [*affine, None, None][:2]
    normalised = tile.shapes.output[-tile.attributes["num_dims"] :]
    return (F.layer_norm(samples, normalised, weight, bias, tile.attributes["eps"]),)


@tile_function("frozen_batch_norm")
def frozen_batch_norm(tile: Tile, operands: Operands, seed: int) -> Outputs:
    samples, mean, variance, weight, bias = [*operands, None, None][:5]
    assert samples is not None
    return (F.batch_norm(samples, mean, variance, weight, bias, eps=tile.attributes["eps"]),)


def batch_norm_moments(tile: Tile, operands: Operands) -> Tensor:
    """Return count, mean and sum of squared deviations of each channel, `[3, channel]`, in at least float32."""
    samples = operands[0]
    assert samples is not None
    samples = samples.to(torch.promote_types(samples.dtype, torch.float32))  # bfloat16 has no 257, float16 no 65,536
    dims = [dim for dim in range(samples.dim()) if dim != 1]
    variance, mean = torch.var_mean(samples, dim=dims, correction=0)
    count = samples.numel() // samples.shape[1]
    return torch.stack([torch.full_like(mean, count), mean, variance * count])


def batch_norm_normalised(tile: Tile, operands: Operands, found: Tensor) -> Outputs:
    """Normalise with the moments of all tiles, `[tile, 3, channel]`."""
    samples, weight, bias = [*operands, None, None][:3]
    assert samples is not None
    mean, squares, count = _combined(found)
    ones = torch.ones_like(mean) if weight is None else weight.to(mean.dtype)
    zeros = torch.zeros_like(mean) if bias is None else bias.to(mean.dtype)
    normalised: Tensor = _Normalise.apply(samples, mean, squares / count, ones, zeros, tile.attributes["eps"])  # type: ignore[no-untyped-call]
    return (normalised,)


def batch_norm_update(tile: Tile, found: Tensor, kept: Mapping[str, Tensor]) -> None:
    """Update the running statistics with the moments of all tiles; the variance is unbiased, as in PyTorch."""
    mean, squares, count = _combined(found)
    for name, value in (("running_mean", mean), ("running_var", squares / (count - 1))):
        kept[name].lerp_(value.to(kept[name].dtype), tile.attributes["momentum"])


def batch_norm_whole(tile: Tile, operands: Operands, kept: Mapping[str, Tensor] | None) -> Outputs:
    """Compute batch norm of a tile that has all samples of its channels."""
    samples, weight, bias = [*operands, None, None][:3]
    assert samples is not None
    mean, variance = (kept["running_mean"], kept["running_var"]) if kept else (None, None)
    attributes = tile.attributes
    return (F.batch_norm(samples, mean, variance, weight, bias, True, attributes["momentum"], attributes["eps"]),)


CALLS["batch_norm"] = SummedCall(batch_norm_moments, batch_norm_normalised, batch_norm_update, batch_norm_whole)


def _combined(found: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return total mean, total sum of squared deviations, and total count."""
    # Chan, Golub, LeVeque, 1983, equation 3.1.
    counts, means, squares = found.unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    return mean, (squares + counts * (means - mean).square()).sum(0), count


_aten: Any = torch.ops.aten


class _Normalise(torch.autograd.Function):
    """`y = (x - mean) / sqrt(variance + eps) * weight + bias`, differentiable in all five tensors."""

    # Uses PyTorch's kernels for fixed statistics, one forward and one backward: the gradients of mean and variance
    # follow from those of bias and weight.

    @staticmethod
    def forward(
        ctx: Any, samples: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(samples, mean, variance, weight)
        ctx.eps = eps
        return F.batch_norm(samples, mean, variance, weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        samples, mean, variance, weight = ctx.saved_tensors
        of_samples, of_weight, of_bias = _aten.native_batch_norm_backward(
            gradients[0], samples, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        scale = weight * (variance + ctx.eps).rsqrt()
        of_variance = -0.5 * weight * of_weight / (variance + ctx.eps)
        return of_samples, -scale * of_bias, of_variance, of_weight, of_bias, None


_GATES = 4
_CELL_FLOPS = 30  # per unit: sigmoids, hyperbolic tangents and their combination

_State: TypeAlias = tuple[Value, Value]  # hidden and cell state


@translation("lstm_cell")
def _lstm_cell(builder: GraphBuilder, exported: Exported) -> Result:
    hidden, cell = exported["hx"]
    weights = not_none(*(exported[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")))
    if not _are_weights(weights):
        return None
    return _add_cell(builder, exported["input"], (hidden, cell), weights)


@translation("lstm")
def _lstm(builder: GraphBuilder, exported: Exported) -> Result:
    if exported.function != "aten.lstm.input":  # packed sequences
        return None
    inputs, (hidden, cell), parameters = exported["input"], exported["hx"], exported["params"]
    directions = 1 + exported["bidirectional"]
    per_cell = len(parameters) // (exported["num_layers"] * directions)
    cells = [parameters[at : at + per_cell] for at in range(0, len(parameters), per_cell)]
    if len(builder.shape(inputs)) != 3 or per_cell != 2 + 2 * exported["has_biases"] or not _are_weights(parameters):
        return None
    time = int(exported["batch_first"])
    base, last = builder.name, list[_State]()
    builder.name = f"{base}.step"
    steps: list[Value] = [selected(builder, inputs, time, step) for step in range(builder.shape(inputs)[time])]
    for number, weights in enumerate(cells):
        layer, is_backwards = divmod(number, directions)
        name = f"{base}.{layer}{'.reverse' if is_backwards else ''}"
        builder.name = f"{name}.start"
        if not is_backwards:
            if layer and exported["train"] and exported["dropout"]:
                steps = [dropped(builder, step, exported["dropout"]) for step in steps]
            outputs: list[list[Value]] = []
        state: _State = selected(builder, hidden, 0, number), selected(builder, cell, 0, number)
        builder.name = name
        made = []
        for step in steps[::-1] if is_backwards else steps:
            state = _add_cell(builder, step, state, weights)
            made.append(state[0])
        last.append(state)
        outputs.append(made[::-1] if is_backwards else made)
        if len(outputs) == directions:
            steps = [
                each[0] if directions == 1 else concatenated(builder, each, 1) for each in zip(*outputs, strict=True)
            ]
    builder.name = base
    ends = [stacked(builder, values, 0) for values in zip(*last, strict=True)]
    return stacked(builder, steps, time), *ends


def _add_cell(builder: GraphBuilder, inputs: Value, state: _State, weights: Sequence[Value]) -> _State:
    shape = samples, units = builder.shape(state[1])
    views = [_by_gate(builder, weight) for weight in weights]
    outputs = [(shape, builder.dtype(state[1]))] * 2
    flops = samples * units * (2 * _GATES * (builder.shape(inputs)[1] + units) + _CELL_FLOPS)
    hidden, cell = builder.add("lstm_cell", [inputs, *state, *views], outputs, flops=flops)
    return hidden, cell


def _by_gate(builder: GraphBuilder, weight: Value) -> Weight:
    """View a weight with the gates as the first dimension."""
    assert isinstance(weight, Weight)
    rows, *rest = builder.shape(Weight(weight.name))
    return Weight(weight.name, (_GATES, rows // _GATES, *rest))


def _are_weights(parameters: Sequence[Value]) -> bool:
    return all(isinstance(parameter, Weight) for parameter in parameters)


@tile_function("lstm_cell")
def lstm_cell(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Compute the next states of the tile's units from the previous hidden states of all units."""
    inputs, hidden, cell, of_inputs, of_hidden, *biases = required(operands)
    from_inputs, from_hidden = biases or (None, None)
    gates = _gates(inputs, of_inputs, from_inputs) + _gates(hidden, of_hidden, from_hidden)
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


def _gates(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the pre-activations of all four gates, `[sample, 4 units]`, with a weight `[4, unit, in]`."""
    return F.linear(inputs, weight.flatten(0, 1), None if bias is None else bias.flatten())
