"""Tiles of operators that compute nothing: they put elements elsewhere."""

import torch
from torch import Tensor

from bow.planning.problem.box import Box, volume
from bow.planning.rules.mapped import Shape
from bow.planning.rules.views import Segment, segments
from bow.planning.tiles.calls.tile import Operands, Outputs, Tile, padded, required


def concat(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """What there is of the operands, behind each other."""
    parts = [operand for operand in operands if operand is not None]
    return (torch.cat(parts, dim=tile.attributes["dim"]),)


def stack(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """What there is of the operands, side by side."""
    parts = [operand for operand in operands if operand is not None]
    return (torch.stack(parts, dim=tile.attributes["dim"]),)


def pad(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """A part of a tensor with a constant around it."""
    (tensor,) = required(operands)
    fetched = tile.operands[0]
    assert fetched is not None
    amounts = []
    for (start, end), (first, last), before in zip(fetched, tile.box, tile.attributes["before"], strict=True):
        amounts.append((start + before - first, last - end - before))  # below 0: elements that are cut off
    return (padded(tensor, amounts, tile.attributes["value"]),)


def permute(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Dimensions in another order."""
    (tensor,) = required(operands)
    return (tensor.permute(tile.attributes["dims"]),)


def expand(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """A tensor stretched to a larger shape."""
    (tensor,) = required(operands)
    return (tensor.expand(tile.sizes),)


def cut(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Every so many elements along a dimension."""
    (tensor,) = required(operands)
    dim = tile.attributes["dim"]
    return (tensor[(slice(None),) * dim + (slice(None, None, tile.attributes["step"]),)],)


def select(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """One element along a dimension."""
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
