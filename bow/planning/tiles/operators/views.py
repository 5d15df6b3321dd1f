"""Operators that rearrange elements: reshaping, permuting, slicing, joining, padding."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bow.planning.problem.box import Box, volume
from bow.planning.rules.rule import Shape
from bow.planning.rules.views import Segment, segments
from bow.planning.tiles.graph_builder import GraphBuilder, TensorRef, Value, Weight
from bow.planning.tiles.operators.calls import (
    CALLS,
    Exported,
    LocalCall,
    Operands,
    Outputs,
    Result,
    Tile,
    axis,
    padded,
    plain,
    required,
    tile_function,
    translation,
)


@translation(
    "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "_unsafe_view", "reshape_as", "ravel"
)
def _reshape(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    if exported.function == "aten.view.dtype":
        return None
    if builder.shape(tensor) == exported.shape:
        return tensor  # type: ignore[no-any-return]
    return builder.add("reshape", [tensor], exported.outputs)


@translation("transpose", "permute", "t")
def _permute(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    rank = len(exported.shape)
    dims = list(range(rank))
    if "dims" in exported.arguments:
        dims = [axis(dim, rank) for dim in exported["dims"]]
    elif "dim0" in exported.arguments:
        one, other = axis(exported["dim0"], rank), axis(exported["dim1"], rank)
        dims[one], dims[other] = other, one
    elif exported.function == "aten.t.default":
        dims.reverse()
    else:
        return None
    return builder.add("permute", [tensor], exported.outputs, {"dims": dims})


@translation("expand", "expand_as")
def _expand(builder: GraphBuilder, exported: Exported) -> Result:
    return builder.add("expand", [exported["self"]], exported.outputs)


@translation("broadcast_tensors")
def _stretch(builder: GraphBuilder, exported: Exported) -> Result:
    stretched: list[Value] = []
    for tensor, (shape, dtype) in zip(exported["tensors"], exported.outputs, strict=True):
        is_same = builder.shape(tensor) == shape
        stretched.append(tensor if is_same else builder.add("expand", [tensor], [(shape, dtype)])[0])
    return tuple(stretched)


@translation("slice", "narrow")
def _slice(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    if exported.function not in ("aten.slice.Tensor", "aten.narrow.default"):
        return None
    shape = builder.shape(tensor)
    dim = axis(exported["dim"], len(shape))
    start, _, step = slice(exported["start"], None, exported.arguments.get("step", 1)).indices(shape[dim])
    return sliced(builder, tensor, dim, start, start + step * exported.shape[dim], step)


@translation("select")
def _select(builder: GraphBuilder, exported: Exported) -> Result:
    if not isinstance(exported["index"], int):
        return None
    tensor = exported["self"]
    return selected(builder, tensor, axis(exported["dim"], len(builder.shape(tensor))), exported["index"])


@translation("split", "split_with_sizes", "chunk", "tensor_split")
def _split(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    dim = axis(exported["dim"], len(builder.shape(tensor)))
    ends = [*itertools.accumulate((shape[dim] for shape, _ in exported.outputs), initial=0)]
    return tuple(sliced(builder, tensor, dim, start, end) for start, end in itertools.pairwise(ends))


@translation("unbind")
def _unbind(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    dim = axis(exported["dim"], len(builder.shape(tensor)))
    return tuple(selected(builder, tensor, dim, index) for index in range(len(exported.outputs)))


@translation("cat", "concat", "concatenate")
def _concat(builder: GraphBuilder, exported: Exported) -> Result:
    tensors = exported["tensors"]
    if any(len(builder.shape(tensor)) != len(exported.shape) for tensor in tensors):
        return None  # legacy: torch.cat accepts empty one-dimensional tensors
    return concatenated(builder, tensors, axis(exported["dim"], len(exported.shape)))


@translation("stack")
def _stack(builder: GraphBuilder, exported: Exported) -> Result:
    return stacked(builder, exported["tensors"], axis(exported["dim"], len(exported.shape)))


@translation("pad", "constant_pad_nd")
def _pad(builder: GraphBuilder, exported: Exported) -> Result:
    tensor, amounts = exported["self"], exported["pad"]
    if exported.arguments.get("mode", "constant") != "constant":
        return None
    before = [0] * len(exported.shape)
    for place, amount in enumerate(amounts[::2]):
        before[-1 - place] = amount
    attributes = {"before": before, "value": exported["value"] or 0}
    return builder.add("pad", [as_tensor(builder, tensor)], exported.outputs, attributes)


def sliced(builder: GraphBuilder, tensor: Value, dim: int, start: int, end: int, step: int = 1) -> TensorRef:
    shape = list(builder.shape(tensor))
    shape[dim] = len(range(start, end, step))
    return builder.add_single_output("slice", [tensor], shape, {"dim": dim, "start": start, "step": step})


def selected(builder: GraphBuilder, tensor: Value, dim: int, index: int) -> TensorRef:
    shape = list(builder.shape(tensor))
    size = shape.pop(dim)
    return builder.add_single_output("select", [tensor], shape, {"dim": dim, "index": index % size})


def concatenated(builder: GraphBuilder, tensors: Sequence[Value], dim: int) -> TensorRef:
    shape = list(builder.shape(tensors[0]))
    shape[dim] = sum(builder.shape(tensor)[dim] for tensor in tensors)
    return builder.add_single_output("concat", [as_tensor(builder, tensor) for tensor in tensors], shape, {"dim": dim})


def stacked(builder: GraphBuilder, tensors: Sequence[Value], dim: int) -> TensorRef:
    shape = list(builder.shape(tensors[0]))
    shape.insert(dim, len(tensors))
    return builder.add_single_output("stack", [as_tensor(builder, tensor) for tensor in tensors], shape, {"dim": dim})


def as_tensor(builder: GraphBuilder, tensor: Value) -> Value:
    """Return a value as an input, adding an alias for a parameter: tiles may not skip weights, but may skip inputs."""
    return builder.add_pointwise(tensor, "aten.alias.default") if isinstance(tensor, Weight) else tensor


def joined(function: Callable[..., Tensor]) -> LocalCall:
    """Wrap a function that joins the operands that are not None along the attribute `dim`."""

    def call(tile: Tile, operands: Operands, seed: int) -> Outputs:
        return (function([operand for operand in operands if operand is not None], dim=tile.attributes["dim"]),)

    return call


CALLS |= {"concat": joined(torch.cat), "stack": joined(torch.stack), "permute": plain(torch.permute, "dims")}


@tile_function("pad")
def pad(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (tensor,) = required(operands)
    fetched = tile.operands[0]
    assert fetched is not None
    amounts = []
    for (start, end), (first, last), before in zip(fetched, tile.box, tile.attributes["before"], strict=True):
        amounts.append((start + before - first, last - end - before))  # negative: crop
    return (padded(tensor, amounts, tile.attributes["value"]),)


@tile_function("expand")
def expand(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (tensor,) = required(operands)
    return (tensor.expand(tile.sizes),)


@tile_function("slice")
def cut(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (tensor,) = required(operands)
    dim = tile.attributes["dim"]
    return (tensor[(slice(None),) * dim + (slice(None, None, tile.attributes["step"]),)],)


@tile_function("select")
def select(tile: Tile, operands: Operands, seed: int) -> Outputs:
    (tensor,) = required(operands)
    return (tensor.select(tile.attributes["dim"], 0),)


@tile_function("reshape")
def reshape(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Compute a tile of a reshape; not all elements of the box that it reads may belong to the tile."""
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
            chosen = _tile_positions(segment, shape, fetched, tile.shapes.output, tile.box)
            if len(chosen) != tensor.shape[number]:
                tensor = tensor.index_select(number, chosen.to(tensor.device))
    return (tensor.reshape(tile.sizes),)


def _tile_positions(segment: Segment, operand: Shape, fetched: Box, output: Shape, box: Box) -> Tensor:
    """Return the positions in a segment of the fetched box of the tile's elements, in row-major order."""
    of_operand, of_output = slice(*segment.operand), slice(*segment.output)
    held, wanted = _flat(operand[of_operand], fetched[of_operand]), _flat(output[of_output], box[of_output])
    return torch.searchsorted(held, wanted)


def _flat(sizes: Shape, box: Box) -> Tensor:
    """Return the row-major indices of a box's elements in the whole tensor."""
    numbers = torch.zeros(1, dtype=torch.int64)
    for size, (start, end) in zip(sizes, box, strict=True):
        numbers = (numbers.unsqueeze(1) * size + torch.arange(start, end)).flatten()
    return numbers
