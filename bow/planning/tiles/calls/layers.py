"""Tiles of layers, losses, norms, pointwise operators and dropout, and of what only puts elements elsewhere."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bow.planning.problem.box import Box, volume
from bow.planning.rules.mapped import Shape
from bow.planning.rules.views import Segment, segments
from bow.planning.tiles.calls.tile import LocalCall, Operands, Outputs, SummedCall, Tile, padded, required
from bow.planning.tiles.encoding import decoded, function


def call_by_name(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Whatever operator the attributes name, called with the parts in the place of the whole."""
    # Attributes: `function`, `arguments` and `keywords`, as `bow.planning.tiles.encoding` writes them.
    attributes = tile.attributes
    device = next((operand.device for operand in operands if operand is not None), torch.device("cpu"))
    arguments = decoded(attributes["arguments"], operands, device)
    keywords = {name: decoded(value, operands, device) for name, value in attributes["keywords"].items()}
    made: Any = function(attributes["function"])(*arguments, **keywords)
    return (made,) if isinstance(made, Tensor) else tuple(made)


def plain(function: Callable[..., Tensor], *names: str) -> LocalCall:
    """A function of the operands, which are all there, and of some attributes behind them."""

    def call(tile: Tile, operands: Operands, seed: int) -> Outputs:
        return (function(*required(operands), *(tile.attributes[name] for name in names)),)

    return call


def dropout(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Some elements are dropped, and which does not depend on how the tensor is cut."""
    # The mask of the whole tensor is drawn from the seed, and the tile's part of it used.
    (samples,) = required(operands)
    probability = tile.attributes["p"]
    generator = torch.Generator(samples.device).manual_seed(seed)
    shape = list(tile.shapes.output)
    part = tuple(slice(*side) for side in tile.box)
    if tile.attributes["of_channels"]:  # a channel is dropped as a whole
        shape[2:] = [1] * len(shape[2:])
        part = part[:2]
    # In float32 whatever the model computes in: the same elements are dropped in every precision.
    drawn = torch.rand(shape, generator=generator, device=samples.device)[part]
    return (samples * ((drawn >= probability).to(samples.dtype) / max(1 - probability, 1e-38)),)


def attention(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Attention of some queries to all keys."""
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


def lstm_cell(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """The next states of some units, from the last hidden states of all."""
    inputs, hidden, cell, of_inputs, of_hidden, *biases = required(operands)
    from_inputs, from_hidden = biases or (None, None)
    gates = _gates(inputs, of_inputs, from_inputs) + _gates(hidden, of_hidden, from_hidden)
    take, forget, candidate, show = gates.chunk(4, dim=1)
    cell = forget.sigmoid() * cell + take.sigmoid() * candidate.tanh()
    return show.sigmoid() * cell.tanh(), cell


def layer_norm(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Layer norm of some samples."""
    samples, *affine = required(operands)
    weight, bias = [*affine, None, None][:2]
    normalised = tile.shapes.output[-tile.attributes["num_dims"] :]
    return (F.layer_norm(samples, normalised, weight, bias, tile.attributes["eps"]),)


def cross_entropy(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """The loss of each sample; 0 where the class is the ignored one."""
    scores, classes = required(operands)
    ignored = tile.attributes["ignore_index"]
    if tile.attributes["is_logarithm"]:
        return (F.nll_loss(scores, classes, reduction="none", ignore_index=ignored),)
    smoothing = tile.attributes["label_smoothing"]
    return (F.cross_entropy(scores, classes, reduction="none", ignore_index=ignored, label_smoothing=smoothing),)


def counted_mean(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """The mean of the losses whose class is not the ignored one."""
    losses, classes = required(operands)
    return (losses.sum() / (classes != tile.attributes["ignore_index"]).sum(),)


def _gates(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """All four gates' products, `[sample, 4 units]`, of a weight `[4, unit, in]`."""
    return F.linear(inputs, weight.flatten(0, 1), None if bias is None else bias.flatten())


_aten: Any = torch.ops.aten


def moments(tile: Tile, operands: Operands) -> Tensor:
    """Count, mean and sum of squared deviations of each channel, `[3, channel]`."""
    samples = operands[0]
    assert samples is not None
    variance, mean = torch.var_mean(samples, dim=_all_but_channel(samples), correction=0)
    count = samples.numel() // samples.shape[1]
    return torch.stack([torch.full_like(mean, count), mean, variance * count])


def finish(tile: Tile, operands: Operands, found: Tensor) -> Outputs:
    """Normalise by the moments of all tiles, `[tile, 3, channel]`."""
    samples, weight, bias = [*operands, None, None][:3]
    assert samples is not None
    _, mean, squares, count = _combined(found)
    ones = torch.ones_like(mean) if weight is None else weight
    zeros = torch.zeros_like(mean) if bias is None else bias
    normalised: Tensor = _Normalise.apply(samples, mean, squares / count, ones, zeros, tile.attributes["eps"])  # type: ignore[no-untyped-call]
    return (normalised,)


def update(tile: Tile, found: Tensor, kept: Mapping[str, Tensor]) -> None:
    """Move the running statistics by the moments of all tiles; the variance is the unbiased one, as in PyTorch."""
    _, mean, squares, count = _combined(found)
    momentum = tile.attributes["momentum"]
    kept["running_mean"].lerp_(mean, momentum)
    kept["running_var"].lerp_(squares / (count - 1), momentum)


def alone(tile: Tile, operands: Operands, kept: Mapping[str, Tensor] | None) -> Outputs:
    """Batch norm of a tile that has all samples of its channels."""
    samples, weight, bias = [*operands, None, None][:3]
    assert samples is not None
    mean, variance = (kept["running_mean"], kept["running_var"]) if kept else (None, None)
    attributes = tile.attributes
    return (F.batch_norm(samples, mean, variance, weight, bias, True, attributes["momentum"], attributes["eps"]),)


BATCH_NORM = SummedCall(moments, finish, update, alone)


def frozen_batch_norm(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Batch norm with given statistics."""
    samples, mean, variance, weight, bias = [*operands, None, None][:5]
    assert samples is not None
    return (F.batch_norm(samples, mean, variance, weight, bias, eps=tile.attributes["eps"]),)


def _combined(found: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Deviations of the tiles' means, the mean of all, the sum of squared deviations from it, and the count."""
    # Chan, Golub, LeVeque, 1983, equation 3.1.
    counts, means, squares = found.unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    deviations = means - mean
    return deviations, mean, (squares + counts * deviations.square()).sum(0), count


def _all_but_channel(samples: Tensor) -> list[int]:
    return [dim for dim in range(samples.dim()) if dim != 1]


class _Normalise(torch.autograd.Function):
    """`y = (x - mean) / sqrt(variance + eps) * weight + bias`, differentiable by all of them."""

    # One kernel forward and one backward, PyTorch's own for given statistics: what it finds for weight and bias is what
    # the gradients of mean and variance are made of.

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


def joined(function: Callable[..., Tensor]) -> LocalCall:
    """What there is of the operands, behind each other or side by side."""

    def call(tile: Tile, operands: Operands, seed: int) -> Outputs:
        return (function([operand for operand in operands if operand is not None], dim=tile.attributes["dim"]),)

    return call


def pad(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """A part of a tensor with a constant around it."""
    (tensor,) = required(operands)
    fetched = tile.operands[0]
    assert fetched is not None
    amounts = []
    for (start, end), (first, last), before in zip(fetched, tile.box, tile.attributes["before"], strict=True):
        amounts.append((start + before - first, last - end - before))  # below 0: elements that are cut off
    return (padded(tensor, amounts, tile.attributes["value"]),)


def expand(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (tensor,) = required(operands)
    return (tensor.expand(tile.sizes),)


def cut(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (tensor,) = required(operands)
    dim = tile.attributes["dim"]
    return (tensor[(slice(None),) * dim + (slice(None, None, tile.attributes["step"]),)],)


def select(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (tensor,) = required(operands)
    return (tensor.select(tile.attributes["dim"], 0),)


def reshape(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """A part of a tensor in another shape; of the box that it is given, some elements may be left out."""
    (tensor,) = required(operands)
    fetched = tile.operands[0]
    assert fetched is not None
    if volume(fetched) != volume(tile.box):
        (shape,) = tile.shapes.operands
        for number, segment in enumerate(segments(shape, tile.shapes.output)):
            tensor = (
                tensor.flatten(number, number + segment.operand[1] - segment.operand[0] - 1)
                if (segment.operand[1] > segment.operand[0])
                else tensor.unsqueeze(number)
            )
            chosen = _chosen(segment, shape, fetched, tile.shapes.output, tile.box)
            if len(chosen) != tensor.shape[number]:
                tensor = tensor.index_select(number, chosen.to(tensor.device))
    return (tensor.reshape(tile.sizes),)


def _chosen(segment: Segment, operand: Shape, fetched: Box, output: Shape, box: Box) -> Tensor:
    """Which elements of what was fetched of a segment belong to the tile, both counted row by row."""
    of_operand, of_output = slice(*segment.operand), slice(*segment.output)
    held, wanted = _flat(operand[of_operand], fetched[of_operand]), _flat(output[of_output], box[of_output])
    return torch.searchsorted(held, wanted)


def _flat(sizes: Shape, box: Box) -> Tensor:
    """The numbers of a box's elements, counted row by row in the whole."""
    numbers = torch.zeros(1, dtype=torch.int64)
    for size, (start, end) in zip(sizes, box, strict=True):
        numbers = (numbers.unsqueeze(1) * size + torch.arange(start, end)).flatten()
    return numbers
