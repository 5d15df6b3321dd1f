"""From a trace to a step graph: lowered, cleaned up, split, and annotated with costs and parameters."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from bow.graph.cleanup import drop_dead, renumber, skip_identities
from bow.graph.convolution import split_convolution_backward
from bow.graph.cost import bytes_moved, flops
from bow.graph.learning_step import StepOutputs
from bow.graph.lowering import Lowering
from bow.graph.operator import Operator
from bow.graph.step_graph import StepGraph
from bow.graph.tensor_spec import TensorSpec
from bow.graph.tracing import Trace
from bow.graph.update import OptimizerFactory, update_operators


def assemble(
    trace: Trace, parameters: Sequence[str], buffers: Sequence[str], batch: Sequence[str], device: str
) -> StepGraph:
    """The step graph of a trace, without updates."""
    lowering = Lowering(trace)
    inputs = iter(lowering.inputs)
    bound = [{name: next(inputs) for name in names} for names in (parameters, buffers, batch)]
    operators, instead = skip_identities(lowering.operators, lowering.values)
    outputs = _output_values(trace.outputs, lowering, instead)
    wanted = {outputs["loss"], *(value for group in _groups(outputs) for value in group.values())}
    operators = renumber(drop_dead(split_convolution_backward(operators, wanted), wanted))
    used = {value for operator in operators for value in (*operator.reads, *operator.results) if value is not None}
    kept = used | wanted | set(lowering.inputs)
    return StepGraph(
        operators=tuple(_annotated(operators, lowering.values, bound[0])),
        values={value: spec for value, spec in lowering.values.items() if value in kept},
        parameters=bound[0],
        buffers=bound[1],
        batch=bound[2],
        constants={value: tensor for value, tensor in lowering.constants.items() if value in kept},
        device=device,
        **outputs,
    )


def with_updates(graph: StepGraph, optimizer: OptimizerFactory, model: nn.Module) -> StepGraph:
    """The graph with an update operator for each of the optimizer's parameter groups."""
    values = dict(graph.values)
    updates = update_operators(optimizer, model, graph.parameters, graph.gradients, values, len(graph.operators))
    return dataclasses.replace(graph, operators=(*graph.operators, *updates), values=values)


def _output_values(outputs: StepOutputs, lowering: Lowering, instead: Mapping[int, int]) -> dict[str, Any]:
    def value(node: Any) -> int:
        made = lowering.value(node)
        return instead.get(made, made)

    return {
        "loss": value(outputs.loss),
        "gradients": {name: value(node) for name, node in outputs.gradients.items()},
        "new_buffers": {name: value(node) for name, node in outputs.buffers.items()},
        "metrics": {name: value(node) for name, node in outputs.metrics.items()},
    }


def _groups(outputs: Mapping[str, Any]) -> list[dict[str, int]]:
    return [outputs[name] for name in ("gradients", "new_buffers", "metrics")]


def _annotated(
    operators: Sequence[Operator], values: Mapping[int, TensorSpec], parameters: Mapping[str, int]
) -> Iterator[Operator]:
    """Operators with what they cost and the parameters that they read, through views and casts too."""
    origin: dict[int, tuple[str, ...]] = {value: (name,) for name, value in parameters.items()}
    for operator in operators:
        names = tuple(dict.fromkeys(name for value in operator.reads for name in origin.get(value, ())))
        if operator.is_view or operator.kind.startswith("aten._to_copy."):
            origin.update({value: names for value in operator.results if value is not None})
        yield dataclasses.replace(
            operator, parameters=names, flops=flops(operator, values), bytes_moved=bytes_moved(operator, values)
        )
