"""Convolution and pooling: tiles receive their halo, padding outside of the image is added here."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bow.planning.problem.box import Box
from bow.planning.rules.layers import windows
from bow.planning.rules.rule import SlidingWindow
from bow.planning.tiles.graph_builder import GraphBuilder
from bow.planning.tiles.operators.calls import (
    Exported,
    Operands,
    Outputs,
    Result,
    Tile,
    not_none,
    padded,
    repeated,
    required,
    tile_function,
    translation,
)


@translation("conv1d", "conv2d", "conv3d")
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
    return builder.add(f"conv{rank}d", not_none(images, weight, bias), exported.outputs, attributes, flops)


@translation("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
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


@translation(*(f"adaptive_{what}_pool{rank}d" for what in ("max", "avg") for rank in (1, 2, 3)))
def _adaptive_pooling(builder: GraphBuilder, exported: Exported) -> Result:
    images, kind = exported["self"], exported.name
    shape = builder.shape(images)
    if len(shape) != int(kind[-2]) + 2:
        return None
    # The second output, indices of maxima, is dropped: a tile would count them from its own corner.
    return builder.add(kind, [images], exported.outputs[:1], flops=math.prod(shape))


@tile_function(*(f"conv{n}d" for n in (1, 2, 3)))
def convolution(tile: Tile, operands: Operands, seed: int) -> Outputs:
    images, weight, *biases = required(operands)
    bias = biases[0] if biases else None
    attributes = tile.attributes
    sides = windows(weight.shape[2:], attributes["stride"], attributes["padding"], attributes["dilation"])
    whole, padding = _pad_windows(tile, images, sides)
    convolve = getattr(F, tile.kind)
    spacing = {"stride": attributes["stride"], "padding": padding, "dilation": attributes["dilation"]}
    first, end = tile.box[1]
    per_group = tile.shapes.output[1] // attributes["groups"]
    if first % per_group == end % per_group == 0 or end - 1 < (first // per_group + 1) * per_group:
        groups = -(-end // per_group) - first // per_group
        return (convolve(whole, weight, bias, groups=groups, **spacing),)
    # The tile begins or ends within a group: one convolution per group.
    borders = [first, *range((first // per_group + 1) * per_group, end, per_group), end]
    parts = []
    for (start, stop), of_group in zip(itertools.pairwise(borders), whole.chunk(len(borders) - 1, dim=1), strict=True):
        own = slice(start - first, stop - first)
        parts.append(convolve(of_group, weight[own], None if bias is None else bias[own], **spacing))
    return (torch.cat(parts, dim=1),)


@tile_function(*(f"max_pool{n}d" for n in (1, 2, 3)))
def max_pool(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (images,) = required(operands)
    attributes, sides = tile.attributes, _pooling_windows(tile)
    whole, padding = _pad_windows(tile, images, sides, value=-math.inf)
    return (getattr(F, tile.kind)(whole, attributes["kernel"], attributes["stride"], padding, attributes["dilation"]),)


@tile_function(*(f"avg_pool{n}d" for n in (1, 2, 3)))
def avg_pool(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (images,) = required(operands)
    attributes, sides = tile.attributes, _pooling_windows(tile)
    whole, padding = _pad_windows(tile, images, sides)
    # These means count padding; they are rescaled by the wanted counts below.
    means = getattr(F, tile.kind)(whole, attributes["kernel"], attributes["stride"], padding)
    elements = math.prod(attributes["kernel"])
    if attributes["divisor"] is not None:
        return (means * (elements / attributes["divisor"]),)
    counts = [_counts(tile, side, attributes["count_padding"]) for side in sides]
    if all(count == side.kernel for of, side in zip(counts, sides, strict=True) for count in of):
        return (means,)
    wanted = [torch.tensor(of, dtype=means.dtype, device=means.device) for of in counts]
    outer = functools.reduce(lambda product, side: product.unsqueeze(-1) * side, wanted)
    return (means * (elements / outer),)


@tile_function(*(f"adaptive_max_pool{n}d" for n in (1, 2, 3)))
def adaptive_max_pool(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (images,) = required(operands)
    pool = getattr(F, tile.kind)
    if _is_regular(tile):
        return (pool(images, tile.sizes[2:]),)
    cuts = [_adaptive_cuts(tile, dim) for dim in range(2, images.dim())]
    parts = [
        pool(images[(slice(None), slice(None), *(slice(*cut) for cut in window))], (1,) * len(cuts))
        for window in itertools.product(*cuts)
    ]
    return (torch.cat([part.flatten(2) for part in parts], dim=2).reshape(tile.sizes),)


@tile_function(*(f"adaptive_avg_pool{n}d" for n in (1, 2, 3)))
def adaptive_avg_pool(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (images,) = required(operands)
    if _is_regular(tile):
        return (getattr(F, tile.kind)(images, tile.sizes[2:]),)
    for dim in range(2, images.dim()):  # the mean over a window is separable by dimension
        mixing = images.new_zeros(tile.sizes[dim], images.shape[dim])
        for row, (start, end) in zip(mixing, _adaptive_cuts(tile, dim), strict=True):
            row[start:end] = 1 / (end - start)
        images = torch.tensordot(images, mixing, dims=([dim], [1])).movedim(-1, dim)
    return (images,)


def _pad_windows(
    tile: Tile, images: Tensor, sides: Sequence[SlidingWindow], value: float = 0.0
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the images, explicitly padded if necessary, and the padding that is left to the operator itself."""
    fetched = tile.operands[0]
    assert fetched is not None
    missing = []
    for side in sides:
        (start, end), (first, last) = fetched[side.dim], side.unclipped_interval(tile.box)
        missing.append((start - first, last - end))
    before = tuple(low for low, _ in missing)
    if all(_pads_itself(tile, side, images.shape[side.dim], each) for side, each in zip(sides, missing, strict=True)):
        return images, before
    return padded(images, missing, value), (0,) * len(sides)


def _pads_itself(tile: Tile, side: SlidingWindow, size: int, missing: tuple[int, int]) -> bool:
    """Whether the operator's symmetric padding by the amount missing before the tile gives the same windows."""
    before, behind = missing
    length = side.dilation * (side.kernel - 1) + 1
    found = (size + 2 * before - length) // side.stride + 1
    return 0 <= before <= side.kernel // 2 and behind <= before and found == tile.sizes[side.dim]


def _pooling_windows(tile: Tile) -> list[SlidingWindow]:
    attributes = tile.attributes
    return windows(attributes["kernel"], attributes["stride"], attributes["padding"], attributes["dilation"])


def _counts(tile: Tile, side: SlidingWindow, count_padding: bool) -> list[int]:
    """Return the number of elements in the window of each output of the tile along a dimension."""
    size = tile.shapes.operands[0][side.dim]
    low, high = (-side.padding, size + side.padding) if count_padding else (0, size)
    counts = []
    for index in range(*tile.box[side.dim]):
        start = index * side.stride - side.padding
        counts.append(min(start + side.kernel, high) - max(start, low))
    return counts


def _is_regular(tile: Tile) -> bool:
    """Whether all adaptive windows have the same size, or the operator is not split."""
    sizes = zip(tile.shapes.operands[0][2:], tile.shapes.output[2:], strict=True)
    return tile.is_whole or all(size % output == 0 for size, output in sizes)


def _adaptive_cuts(tile: Tile, dim: int) -> list[tuple[int, int]]:
    """Return the window of each output of the tile along a dimension, in indices of the fetched box."""
    size, output = tile.shapes.operands[0][dim], tile.shapes.output[dim]
    fetched: Box | None = tile.operands[0]
    assert fetched is not None
    origin = fetched[dim][0]
    return [(i * size // output - origin, -(-(i + 1) * size // output) - origin) for i in range(*tile.box[dim])]
