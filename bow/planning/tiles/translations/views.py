"""Translations of what puts elements elsewhere, and of recurrent layers, which become a cell for each step."""

import itertools
from collections.abc import Sequence
from typing import TypeAlias

from bow.planning.tiles.graph_builder import GraphBuilder, TensorRef, Value, Weight
from bow.planning.tiles.translations.layers import dropped
from bow.planning.tiles.translations.table import Exported, Result, axis, present, translates


@translates(
    "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "_unsafe_view", "reshape_as", "ravel"
)
def _reshape(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    if exported.function == "aten.view.dtype":
        return None
    if builder.shape(tensor) == exported.shape:
        return tensor  # type: ignore[no-any-return]
    return builder.add("reshape", [tensor], exported.outputs)


@translates("transpose", "permute", "t")
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


@translates("expand", "expand_as")
def _expand(builder: GraphBuilder, exported: Exported) -> Result:
    return builder.add("expand", [exported["self"]], exported.outputs)


@translates("broadcast_tensors")
def _stretch(builder: GraphBuilder, exported: Exported) -> Result:
    stretched: list[Value] = []
    for tensor, (shape, dtype) in zip(exported["tensors"], exported.outputs, strict=True):
        is_same = builder.shape(tensor) == shape
        stretched.append(tensor if is_same else builder.add("expand", [tensor], [(shape, dtype)])[0])
    return tuple(stretched)


@translates("slice", "narrow")
def _slice(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    if exported.function not in ("aten.slice.Tensor", "aten.narrow.default"):
        return None
    shape = builder.shape(tensor)
    dim = axis(exported["dim"], len(shape))
    start, _, step = slice(exported["start"], None, exported.arguments.get("step", 1)).indices(shape[dim])
    return sliced(builder, tensor, dim, start, start + step * exported.shape[dim], step)


@translates("select")
def _select(builder: GraphBuilder, exported: Exported) -> Result:
    if not isinstance(exported["index"], int):
        return None
    tensor = exported["self"]
    return selected(builder, tensor, axis(exported["dim"], len(builder.shape(tensor))), exported["index"])


@translates("split", "split_with_sizes", "chunk", "tensor_split")
def _split(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    dim = axis(exported["dim"], len(builder.shape(tensor)))
    ends = [*itertools.accumulate((shape[dim] for shape, _ in exported.outputs), initial=0)]
    return tuple(sliced(builder, tensor, dim, start, end) for start, end in itertools.pairwise(ends))


@translates("unbind")
def _unbind(builder: GraphBuilder, exported: Exported) -> Result:
    tensor = exported["self"]
    dim = axis(exported["dim"], len(builder.shape(tensor)))
    return tuple(selected(builder, tensor, dim, index) for index in range(len(exported.outputs)))


@translates("cat", "concat", "concatenate")
def _concat(builder: GraphBuilder, exported: Exported) -> Result:
    tensors = exported["tensors"]
    if any(len(builder.shape(tensor)) != len(exported.shape) for tensor in tensors):
        return None  # an empty tensor without dimensions, of old
    return concatenated(builder, tensors, axis(exported["dim"], len(exported.shape)))


@translates("stack")
def _stack(builder: GraphBuilder, exported: Exported) -> Result:
    return stacked(builder, exported["tensors"], axis(exported["dim"], len(exported.shape)))


@translates("pad", "constant_pad_nd")
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
    """Every so many elements along a dimension."""
    shape = list(builder.shape(tensor))
    shape[dim] = len(range(start, end, step))
    return builder.make("slice", [tensor], shape, {"dim": dim, "start": start, "step": step})


def selected(builder: GraphBuilder, tensor: Value, dim: int, index: int) -> TensorRef:
    """One element along a dimension."""
    shape = list(builder.shape(tensor))
    size = shape.pop(dim)
    return builder.make("select", [tensor], shape, {"dim": dim, "index": index % size})


def concatenated(builder: GraphBuilder, tensors: Sequence[Value], dim: int) -> TensorRef:
    """Tensors behind each other."""
    shape = list(builder.shape(tensors[0]))
    shape[dim] = sum(builder.shape(tensor)[dim] for tensor in tensors)
    return builder.make("concat", [as_tensor(builder, tensor) for tensor in tensors], shape, {"dim": dim})


def stacked(builder: GraphBuilder, tensors: Sequence[Value], dim: int) -> TensorRef:
    """Tensors side by side along a new dimension."""
    shape = list(builder.shape(tensors[0]))
    shape.insert(dim, len(tensors))
    return builder.make("stack", [as_tensor(builder, tensor) for tensor in tensors], shape, {"dim": dim})


def as_tensor(builder: GraphBuilder, tensor: Value) -> Value:
    """A tensor that some tiles do not need: a parameter is read by an operator of its own."""
    return builder.called(tensor, "aten.alias.default") if isinstance(tensor, Weight) else tensor


_GATES = 4
_CELL_FLOPS = 30  # Sigmoids, hyperbolic tangents, and what combines them, of each unit

_State: TypeAlias = tuple[Value, Value]  # The hidden and the cell state, which a cell hands on to the next step


@translates("lstm_cell")
def _lstm_cell(builder: GraphBuilder, exported: Exported) -> Result:
    hidden, cell = exported["hx"]
    weights = present(*(exported[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")))
    if not _are_weights(weights):
        return None
    return _stepped(builder, exported["input"], (hidden, cell), weights)


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
            state = _stepped(builder, step, state, weights)
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


def _stepped(builder: GraphBuilder, inputs: Value, state: _State, weights: Sequence[Value]) -> _State:
    """The states behind a step."""
    shape = samples, units = builder.shape(state[1])
    views = [_by_gate(builder, weight) for weight in weights]
    outputs = [(shape, builder.dtype(state[1]))] * 2
    flops = samples * units * (2 * _GATES * (builder.shape(inputs)[1] + units) + _CELL_FLOPS)
    hidden, cell = builder.add("lstm_cell", [inputs, *state, *views], outputs, flops=flops)
    return hidden, cell


def _by_gate(builder: GraphBuilder, weight: Value) -> Weight:
    """A weight with its gates in a dimension of their own."""
    assert isinstance(weight, Weight)
    rows, *rest = builder.shape(Weight(weight.name))
    return Weight(weight.name, (_GATES, rows // _GATES, *rest))


def _are_weights(parameters: Sequence[Value]) -> bool:
    return all(isinstance(parameter, Weight) for parameter in parameters)
