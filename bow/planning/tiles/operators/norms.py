"""Batch norm, with moments summed over tiles, and layer norm."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bow.planning.tiles.graph_builder import GraphBuilder
from bow.planning.tiles.operators.calls import CALLS, Operands, Outputs, SummedCall, Tile, required, tile_function
from bow.planning.tiles.operators.exported import Exported, Result, not_none, translation

_NORM_FLOPS = 8  # per element, an estimate


@translation("batch_norm")
def _batch_norm(builder: GraphBuilder, exported: Exported) -> Result:
    samples, affine = exported["input"], not_none(exported["weight"], exported["bias"])
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
    operands = not_none(exported["input"], exported["weight"], exported["bias"])
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


def moments(tile: Tile, operands: Operands) -> Tensor:
    """Return count, mean and sum of squared deviations of each channel, `[3, channel]`."""
    samples = operands[0]
    assert samples is not None
    dims = [dim for dim in range(samples.dim()) if dim != 1]
    variance, mean = torch.var_mean(samples, dim=dims, correction=0)
    count = samples.numel() // samples.shape[1]
    return torch.stack([torch.full_like(mean, count), mean, variance * count])


def finish(tile: Tile, operands: Operands, found: Tensor) -> Outputs:
    """Normalise with the moments of all tiles, `[tile, 3, channel]`."""
    samples, weight, bias = [*operands, None, None][:3]
    assert samples is not None
    mean, squares, count = _combined(found)
    ones = torch.ones_like(mean) if weight is None else weight
    zeros = torch.zeros_like(mean) if bias is None else bias
    normalised: Tensor = _Normalise.apply(samples, mean, squares / count, ones, zeros, tile.attributes["eps"])  # type: ignore[no-untyped-call]
    return (normalised,)


def update(tile: Tile, found: Tensor, kept: Mapping[str, Tensor]) -> None:
    """Update the running statistics with the moments of all tiles; the variance is unbiased, as in PyTorch."""
    mean, squares, count = _combined(found)
    momentum = tile.attributes["momentum"]
    kept["running_mean"].lerp_(mean, momentum)
    kept["running_var"].lerp_(squares / (count - 1), momentum)


def single_tile(tile: Tile, operands: Operands, kept: Mapping[str, Tensor] | None) -> Outputs:
    """Compute batch norm of a tile that has all samples of its channels."""
    samples, weight, bias = [*operands, None, None][:3]
    assert samples is not None
    mean, variance = (kept["running_mean"], kept["running_var"]) if kept else (None, None)
    attributes = tile.attributes
    return (F.batch_norm(samples, mean, variance, weight, bias, True, attributes["momentum"], attributes["eps"]),)


CALLS["batch_norm"] = SummedCall(moments, finish, update, single_tile)


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
