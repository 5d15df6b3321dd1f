"""Capture of a training step as a step graph: trace, lower, clean up, annotate with costs and parameters."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from bow.errors import LossError
from bow.graph import tracing
from bow.graph.execution import OptimizerFactory, update_operators
from bow.graph.kinds import bytes_moved, flops
from bow.graph.learning_step import LearningStep, Step, StepOutputs, batch_tensors, checked_model, step_from_loss
from bow.graph.lowering import Lowering, drop_dead, renumber, skip_identities, split_convolution_backward
from bow.graph.operator import Operator, Ref, TensorSpec
from bow.graph.refusal import python_random_kept, python_state, refusal, refuse_changes
from bow.graph.step_graph import StepGraph


def capture(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    step: Step | None = None,
    optimizer: OptimizerFactory | None = None,
    unrolled: bool = True,
) -> StepGraph:
    """Capture the whole training step of one learner as ATen operators.

    The step runs once on fake tensors: nothing is computed, and the model is not changed. It is captured in the
    model's current mode (train or eval), for the shapes of this batch. Global flags of torch are changed during
    capture: do not capture while other threads compute.

    Args:
        model: the model; parameters, buffers and Python attributes are not changed.
        batch: a batch of the shapes to train on: a pair `(inputs, targets)`, or with `step` any pytree of tensors.
        loss: `loss(outputs, targets) -> scalar`.
        step: instead of `loss`: `step(model, batch) -> loss`, or `(loss, {name: scalar})`.
        optimizer: makes an optimizer from the parameters, such as `functools.partial(torch.optim.SGD, lr=0.1)`; the
            graph gets one update operator for each parameter group. None: no update operators.
        unrolled: capture recurrent layers as the matrix products of each time step, several of which can run in
            parallel; compare with eager PyTorch under `torch.backends.mkldnn.flags(enabled=False)`. False: one
            operator for each LSTM layer that eager PyTorch computes with oneDNN, equal bit for bit.

    Raises:
        CaptureError: the step depends on values in Python (`.item()`, an `if` on a tensor), makes shapes from
            values, or changes state that is not a buffer.
        LossError: not exactly one of `loss` and `step`; the result is not a scalar that depends on the parameters.
        ModelError: not a module, no trainable parameters, lazy modules, or the model cannot be copied.
        DataError: the batch has leaves that are not tensors.
        OptimizerError: `optimizer` does not return an optimizer over these parameters.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
        >>> batch = torch.randn(2, 8), torch.randint(4, (2,))
        >>> graph = capture(model, batch, torch.nn.functional.cross_entropy)
        >>> graph.operators[1].kind, graph.operators[1].module, graph.operators[1].parameters
        ('aten.addmm.default', '0', ('0.bias', '0.weight'))

    References:
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018.
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018.
    """
    tracing.check_version()
    model = checked_model(model)
    names = list(batch_tensors(batch))
    learning_step = LearningStep(model, _chosen_step(loss, step))
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    trace = _trace(learning_step, parameters, buffers, batch, unrolled)
    graph = _assembled(trace, list(parameters), list(buffers), names, str(next(iter(parameters.values())).device))
    if optimizer is None:
        return graph
    values = dict(graph.values)
    updates = update_operators(optimizer, model, graph.parameters, graph.gradients, values, len(graph.operators))
    return dataclasses.replace(graph, operators=(*graph.operators, *updates), values=values)


def _chosen_step(loss: Callable[[Any, Any], Tensor] | None, step: Step | None) -> Step:
    if (loss is None) == (step is None):
        raise LossError(f"give either loss or step, got {'neither' if loss is None else 'both'}")
    if step is not None:
        return step
    assert loss is not None
    return step_from_loss(loss)


def _trace(
    step: LearningStep, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any, unrolled: bool
) -> tracing.Trace:
    """Trace a step, and refuse it if a graph cannot repeat it."""
    name, before = type(step.model).__name__, python_state(step.model)
    with python_random_kept():  # if the step is refused, eager draws the same numbers as without the attempt
        trace = tracing.trace(step, parameters, buffers, batch, unrolled)
        refuse_changes(name, before, python_state(step.model))
        if made := dict(step.model.named_buffers()).keys() - buffers.keys():
            raise refusal(name, f"makes buffer {min(made)!r}", "register it with a tensor when the model is built")
    if trace.custom_functions:  # their state is checked only now that they are known, so trace again
        before = python_state(step.model, trace.custom_functions)
        again = tracing.trace(step, parameters, buffers, batch, unrolled)
        refuse_changes(name, before, python_state(step.model, trace.custom_functions))
        if [str(node.target) for node in trace.nodes] != [str(node.target) for node in again.nodes]:
            raise refusal(name, "runs different operators each time")
    return trace


def _assembled(
    trace: tracing.Trace, parameters: Sequence[str], buffers: Sequence[str], batch: Sequence[str], device: str
) -> StepGraph:
    lowering = Lowering(trace)
    inputs = iter(lowering.inputs)
    bound = [{name: next(inputs) for name in names} for names in (parameters, buffers, batch)]
    operators, instead = skip_identities(lowering.operators, lowering.values, lowering.lazy)
    outputs = _output_values(trace.outputs, lowering, instead)
    written = {value for name, value in bound[1].items() if outputs["new_buffers"][name] != value}
    operators += _copies(outputs, operators, lowering.values, written.union(bound[0].values()))
    groups = (outputs[name] for name in ("gradients", "new_buffers", "metrics"))
    wanted = {outputs["loss"], *(value for group in groups for value in group.values())}
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


def _copies(
    outputs: dict[str, Any], operators: Sequence[Operator], values: dict[int, TensorSpec], shared: set[int]
) -> list[Operator]:
    """Replace outputs in the memory of inputs that are written to after the step by copies; return the copies."""
    for operator in operators:
        if operator.is_view and not shared.isdisjoint(operator.reads):
            shared.update(value for value in operator.results if value is not None)
    copies: list[Operator] = []
    for group in (outputs["gradients"], outputs["new_buffers"], outputs["metrics"]):
        for name in (name for name, value in group.items() if value in shared):
            copied = max(values) + 1
            values[copied] = TensorSpec.of(values[group[name]].empty("meta").clone())
            index = max((operator.index for operator in (*operators, *copies)), default=-1) + 1
            copies.append(
                Operator(index, "aten.clone.default", (Ref(group[name]),), {}, (copied,), "forward", module="")
            )
            group[name] = copied
    return copies


def _annotated(
    operators: Sequence[Operator], values: Mapping[int, TensorSpec], parameters: Mapping[str, int]
) -> Iterator[Operator]:
    """Add costs, and the parameters that each operator reads, also through views and casts."""
    origin: dict[int, tuple[str, ...]] = {value: (name,) for name, value in parameters.items()}
    for operator in operators:
        names = tuple(dict.fromkeys(name for value in operator.reads for name in origin.get(value, ())))
        if operator.is_view or operator.kind.startswith("aten._to_copy."):
            origin.update({value: names for value in operator.results if value is not None})
        yield dataclasses.replace(
            operator, parameters=names, flops=flops(operator, values), bytes_moved=bytes_moved(operator, values)
        )
