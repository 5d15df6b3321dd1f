"""LSTMs, unrolled into one cell for each layer and time step."""

from collections.abc import Sequence
from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor

from bow.planning.tiles.graph_builder import GraphBuilder, Value, Weight
from bow.planning.tiles.operators.calls import Operands, Outputs, Tile, required, tile_function
from bow.planning.tiles.operators.exported import Exported, Result, not_none, translation
from bow.planning.tiles.operators.layers import dropped
from bow.planning.tiles.operators.views import concatenated, selected, stacked

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
