"""Translations of recurrent layers: an LSTM becomes one cell for each layer and step."""

from collections.abc import Sequence
from dataclasses import dataclass

from bow.planning.tiles.builder import GraphBuilder, Made, Value, Weight
from bow.planning.tiles.translations.layers import dropped
from bow.planning.tiles.translations.table import Exported, Result, present, translates
from bow.planning.tiles.translations.views import chosen, concatenated, piled

_GATES = 4
# Sigmoids, hyperbolic tangents, and what combines them, of each unit.
_CELL_FLOPS = 30


@dataclass(frozen=True)
class _State:
    """What a cell hands on to the next step."""

    hidden: Value
    cell: Value


@translates("lstm_cell")
def _lstm_cell(builder: GraphBuilder, exported: Exported) -> Result:
    hidden, cell = exported["hx"]
    weights = present(*(exported[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")))
    if not all(isinstance(weight, Weight) for weight in weights):
        return None
    state = _stepped(builder, exported["input"], _State(hidden, cell), weights)
    return state.hidden, state.cell


@translates("lstm")
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
    base, last = builder.name, []
    builder.name = f"{base}.step"
    steps: list[Value] = [chosen(builder, inputs, time, step) for step in range(builder.shape(inputs)[time])]
    for number, weights in enumerate(cells):
        layer, is_backwards = divmod(number, directions)
        name = f"{base}.{layer}{'.reverse' if is_backwards else ''}"
        builder.name = f"{name}.start"
        if not is_backwards:
            if layer and exported["train"] and exported["dropout"]:
                steps = [dropped(builder, step, exported["dropout"]) for step in steps]
            outputs: list[list[Value]] = []
        state = _State(*(chosen(builder, value, 0, number) for value in (hidden, cell)))
        builder.name = name
        made = _unrolled(builder, steps[::-1] if is_backwards else steps, state, weights)
        last.append(made[-1])
        outputs.append([each.hidden for each in (made[::-1] if is_backwards else made)])
        if len(outputs) == directions:
            steps = [
                each[0] if directions == 1 else concatenated(builder, each, 1) for each in zip(*outputs, strict=True)
            ]
    builder.name = base
    ends = [piled(builder, values, 0) for values in ([e.hidden for e in last], [e.cell for e in last])]
    return piled(builder, steps, time), *ends


def _unrolled(builder: GraphBuilder, steps: Sequence[Value], state: _State, weights: Sequence[Value]) -> list[_State]:
    """The states behind every step."""
    states = []
    for step in steps:
        state = _stepped(builder, step, state, weights)
        states.append(state)
    return states


def _stepped(builder: GraphBuilder, inputs: Value, state: _State, weights: Sequence[Value]) -> _State:
    samples, units = builder.shape(state.cell)
    views = [_by_gate(builder, weight) for weight in weights]
    columns = builder.shape(inputs)[1] + units
    made: tuple[Made, ...] = builder.add(
        "lstm_cell",
        [inputs, state.hidden, state.cell, *views],
        [((samples, units), builder.dtype(state.cell))] * 2,
        flops=samples * units * (2 * _GATES * columns + _CELL_FLOPS),
    )
    return _State(*made)


def _by_gate(builder: GraphBuilder, weight: Value) -> Weight:
    """A weight with its gates in a dimension of their own."""
    assert isinstance(weight, Weight)
    rows, *rest = builder.shape(Weight(weight.name))
    return Weight(weight.name, (_GATES, rows // _GATES, *rest))


def _are_weights(parameters: Sequence[Value]) -> bool:
    return all(isinstance(parameter, Weight) for parameter in parameters)
