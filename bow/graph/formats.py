"""A step graph as text: versioned JSON, and a table."""

import base64
import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bow.errors import GraphError
from bow.files import JsonFormat
from bow.graph.operator import Argument, Operator, Ref, TensorSpec
from bow.terminal import aligned

if TYPE_CHECKING:
    from bow.graph.step_graph import StepGraph

FORMAT = JsonFormat(
    "bow step graph",
    version=1,
    subject="the step graph",
    writer="StepGraph.save",
    remedy="capture the model again",
    refusal=GraphError,
)

_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
# Argument types that are attributes of the torch module, by their JSON key.


def dumps(graph: "StepGraph") -> str:
    """Write a graph: one JSON object, one line per operator."""
    fields = FORMAT.fields({"torch": torch.__version__, "device": graph.device, "loss": graph.loss})
    for name in ("parameters", "buffers", "batch", "gradients", "new_buffers", "metrics"):
        fields[name] = dict(getattr(graph, name))
    fields["constants"] = {str(value): _tensor_to_json(tensor) for value, tensor in graph.constants.items()}
    fields["values"] = {str(value): _spec_to_json(spec) for value, spec in graph.values.items()}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()]
    operators = ",\n  ".join(json.dumps(_operator_to_json(operator)) for operator in graph.operators)
    return "{\n" + ",\n".join([*lines, f'"operators": [\n  {operators}\n]']) + "\n}\n"


def loads(text: str) -> dict[str, Any]:
    return FORMAT.loads(text, _fields)


def _fields(read: dict[str, Any]) -> dict[str, Any]:
    names = ("device", "loss", "parameters", "buffers", "batch", "gradients", "new_buffers", "metrics")
    return {name: read[name] for name in names} | {
        "constants": {int(value): _tensor_from_json(tensor) for value, tensor in read["constants"].items()},
        "values": {int(value): _spec_from_json(spec) for value, spec in read["values"].items()},
        "operators": tuple(_operator_from_json(operator) for operator in read["operators"]),
    }


def _operator_to_json(operator: Operator) -> dict[str, Any]:
    written = {f.name: getattr(operator, f.name) for f in dataclasses.fields(operator) if f.init}
    written["arguments"] = [_argument_to_json(argument) for argument in operator.arguments]
    written["keywords"] = {name: _argument_to_json(value) for name, value in operator.keywords.items()}
    return written


def _operator_from_json(read: dict[str, Any]) -> Operator:
    arguments = tuple(_argument_from_json(argument) for argument in read["arguments"])
    keywords = {name: _argument_from_json(value) for name, value in read["keywords"].items()}
    listed = {name: tuple(read[name]) for name in ("results", "parameters")}
    return Operator(**{**read, **listed, "arguments": arguments, "keywords": keywords})


def _argument_to_json(argument: Argument) -> Any:
    if isinstance(argument, Ref):
        return {"value": argument.value}
    if isinstance(argument, tuple):
        return [_argument_to_json(part) for part in argument]
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    if isinstance(argument, complex):
        return {"complex": [argument.real, argument.imag]}
    if isinstance(argument, torch.device):
        return {"device": str(argument)}
    for key, kind in _NAMED.items():
        if isinstance(argument, kind):
            return {key: str(argument).removeprefix("torch.")}
    return argument


def _argument_from_json(read: Any) -> Argument:
    if isinstance(read, list):
        return tuple(_argument_from_json(part) for part in read)
    if not isinstance(read, dict):
        return read
    ((key, value),) = read.items()
    if key in _NAMED:
        return getattr(torch, value)
    make: dict[str, Any] = {"value": Ref, "float": float, "device": torch.device, "complex": lambda v: complex(*v)}
    return make[key](value)


def _spec_to_json(spec: TensorSpec) -> list[Any]:
    return [str(spec.dtype).removeprefix("torch."), spec.shape, spec.strides]


def _spec_from_json(read: list[Any]) -> TensorSpec:
    dtype, shape, strides = read
    return TensorSpec(tuple(shape), tuple(strides), getattr(torch, dtype))


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    raw = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return {
        "spec": _spec_to_json(TensorSpec.of(tensor)),
        "device": str(tensor.device),
        "data": base64.b64encode(raw).decode("ascii"),
        **({"bits": [tensor.is_conj(), tensor.is_neg()]} if tensor.is_conj() or tensor.is_neg() else {}),
    }


def _tensor_from_json(read: dict[str, Any]) -> Tensor:
    spec = _spec_from_json(read["spec"])
    raw = bytearray(base64.b64decode(read["data"]))
    flat = torch.frombuffer(raw, dtype=spec.dtype) if raw else torch.empty(0, dtype=spec.dtype)
    made = spec.empty(read["device"]).copy_(flat.view(spec.shape))
    conjugated, negated = read.get("bits", (False, False))  # operators were traced for a tensor with these bits
    made = made.conj_physical().conj() if conjugated else made
    return torch._neg_view(made.neg()) if negated else made


_COLUMNS = ("#", "phase", "operator", "results", "reads", "module", "parameters", "flop", "bytes", "")


def table(graph: "StepGraph") -> str:
    rows = [_COLUMNS, *(_row(operator, graph) for operator in graph.operators)]
    return "\n".join([summary(graph), *aligned(rows)])


def summary(graph: "StepGraph") -> str:
    phases = Counter(operator.phase for operator in graph.operators)
    views = sum(operator.is_view for operator in graph.operators)
    numbers = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    return (
        f"{len(graph.operators)} operators ({numbers}; {views} views), "
        f"{quantity(graph.flops)}FLOP, {quantity(graph.bytes_moved)}B"
    )


def quantity(number: int) -> str:
    """Format a number with three digits and a decimal prefix."""
    scaled = float(number)
    for prefix in ("", "k", "M", "G", "T"):
        if scaled < 1000:
            return f"{scaled:.3g} {prefix}"
        scaled /= 1000
    return f"{scaled:.3g} P"


def _row(operator: Operator, graph: "StepGraph") -> tuple[str, ...]:
    belongs = f"backward of {operator.forward}" if operator.forward is not None else ""
    remarks = "view" * operator.is_view, "random" * operator.is_random, belongs
    return (
        str(operator.index),
        operator.phase,
        operator.kind,
        _listed(f"%{value}:{graph.values[value]}" for value in operator.results if value is not None),
        _listed(f"%{value}" for value in operator.reads),
        operator.module,
        _listed(operator.parameters),
        quantity(operator.flops),
        quantity(operator.bytes_moved),
        _listed(remark for remark in remarks if remark),
    )


def _listed(parts: Iterable[str], most: int = 3) -> str:
    shown = list(parts)
    return ", ".join(shown[:most]) + (f", ... ({len(shown)})" if len(shown) > most else "")
