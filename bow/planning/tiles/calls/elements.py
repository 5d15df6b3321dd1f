"""Tiles of pointwise operators, reductions and dropout."""

from typing import Any

import torch
from torch import Tensor

from bow.planning.tiles.calls.call import Operands, Outputs, given
from bow.planning.tiles.encoding import decoded, function
from bow.planning.tiles.tile import Tile


def call_by_name(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Whatever operator the attributes name, called with the parts in the place of the whole.

    Attributes: `function`, `arguments` and `keywords`, as `bow.planning.tiles.encoding` writes them.
    """
    attributes = tile.attributes
    device = next((operand.device for operand in operands if operand is not None), torch.device("cpu"))
    arguments = decoded(attributes["arguments"], operands, device)
    keywords = {name: decoded(value, operands, device) for name, value in attributes["keywords"].items()}
    made: Any = function(attributes["function"])(*arguments, **keywords)
    return (made,) if isinstance(made, Tensor) else tuple(made)


def dropout(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Some elements are dropped, and which does not depend on how the tensor is cut.

    The mask of the whole tensor is drawn from the seed, and the tile's part of it used.
    """
    (samples,) = given(operands)
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
