"""Tiles of linear layers, products, embeddings, recurrent cells and losses."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bow.planning.tiles.calls.call import Operands, Outputs, given
from bow.planning.tiles.tile import Tile


def linear(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Some channels of a linear layer."""
    inputs, weight, *biases = given(operands)
    return (F.linear(inputs, weight, biases[0] if biases else None),)


def matmul(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Some rows and columns of a product."""
    left, right = given(operands)
    return (torch.matmul(left, right),)


def attention(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Attention of some queries to all keys."""
    queries, keys, values, *masks = given(operands)
    mask = masks[0] if masks else None
    scale = tile.attributes["scale"]
    if tile.attributes["causal"]:
        first, end = tile.box[-2]
        rows = torch.arange(first, end, device=queries.device).unsqueeze(1)
        mask = torch.arange(keys.shape[-2], device=queries.device) <= rows
    if scale is None:
        scale = 1 / math.sqrt(queries.shape[-1])
    return (F.scaled_dot_product_attention(queries, keys, values, mask, scale=scale),)


def embedding(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Some channels of some rows of a table."""
    rows, table = given(operands)
    return (F.embedding(rows, table, tile.attributes["padding_idx"]),)


def lstm_cell(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """The next states of some units, from the last hidden states of all."""
    inputs, hidden, cell, of_inputs, of_hidden, *biases = given(operands)
    from_inputs, from_hidden = [*biases, None, None][:2]
    gates = _gates(inputs, of_inputs, from_inputs) + _gates(hidden, of_hidden, from_hidden)
    take, forget, candidate, show = gates.chunk(4, dim=1)
    cell = forget.sigmoid() * cell + take.sigmoid() * candidate.tanh()
    return show.sigmoid() * cell.tanh(), cell


def layer_norm(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Layer norm of some samples."""
    samples, *affine = given(operands)
    weight, bias = [*affine, None, None][:2]
    normalised = tile.shapes.output[-tile.attributes["num_dims"] :]
    return (F.layer_norm(samples, normalised, weight, bias, tile.attributes["eps"]),)


def softmax(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Softmax along a dimension that is there wholly."""
    (scores,) = given(operands)
    return (scores.softmax(tile.attributes["dim"]),)


def log_softmax(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """Logarithm of softmax along a dimension that is there wholly."""
    (scores,) = given(operands)
    return (scores.log_softmax(tile.attributes["dim"]),)


def cross_entropy(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """The loss of each sample; 0 where the class is the ignored one."""
    scores, classes = given(operands)
    ignored = tile.attributes["ignore_index"]
    if tile.attributes["is_logarithm"]:
        return (F.nll_loss(scores, classes, reduction="none", ignore_index=ignored),)
    smoothing = tile.attributes["label_smoothing"]
    return (F.cross_entropy(scores, classes, reduction="none", ignore_index=ignored, label_smoothing=smoothing),)


def counted_mean(tile: Tile, operands: Operands, seed: int) -> Outputs:
    """The mean of the losses whose class is not the ignored one."""
    losses, classes = given(operands)
    return (losses.sum() / (classes != tile.attributes["ignore_index"]).sum(),)


def _gates(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """All four gates' products, `[sample, 4 units]`, of a weight `[4, unit, in]`."""
    return F.linear(inputs, weight.flatten(0, 1), None if bias is None else bias.flatten())
