"""Updates: one operator per parameter group, carried out by the optimizer itself and never traced."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bow.errors import GraphError, OptimizerError, reason
from bow.graph.operator import Operator, Ref, TensorSpec

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]


def update_operators(
    factory: OptimizerFactory,
    model: nn.Module,
    parameters: Mapping[str, int],
    gradients: Mapping[str, int],
    values: dict[int, TensorSpec],
    first: int,
) -> list[Operator]:
    """The update of each parameter group, whose results (new parameters) are added to `values`.

    Tracing an optimizer bakes its hyper-parameters in as numbers; this keeps schedules and state where they are.
    """
    optimizer = _make(factory, [p for p in model.parameters() if p.requires_grad])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    made = []
    for group, settings in enumerate(optimizer.param_groups):
        updated = [names.get(id(p), "") for p in settings["params"]]
        if "" in updated:
            raise OptimizerError("the optimizer updates a tensor that is not a parameter of the model")
        updated = [name for name in updated if name in gradients]
        results = [_new(values, values[parameters[name]]) for name in updated]
        num_bytes = sum(values[result].num_bytes for result in results)
        operator = Operator(
            index=first + group,
            kind=f"update.{type(optimizer).__name__}",
            arguments=(_refs(parameters, updated), _refs(gradients, updated)),
            keywords={},
            results=tuple(results),
            phase="update",
            module="",
            parameters=tuple(updated),
            bytes_moved=num_bytes * (3 + 2 * _state_tensors(optimizer, group)),
            group=group,
        )
        made.append(operator)
    return made


def apply_update(operator: Operator, optimizer: Optimizer, weights: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Step one group of an optimizer, in place, with the given gradients."""
    assert operator.group is not None
    group = optimizer.param_groups[operator.group]
    own = [p for p in group["params"] if p.requires_grad]
    if [id(p) for p in own] != [id(w) for w in weights]:
        raise GraphError(
            f"group {operator.group} of the optimizer does not hold the {len(weights)} parameters that the graph was "
            "run on; make the optimizer from the same tensors, in the order of the capture"
        )
    everything = [p for other in optimizer.param_groups for p in other["params"]]
    saved = [p.grad for p in everything]
    for parameter in everything:
        parameter.grad = None
    for parameter, grad in zip(own, grads, strict=True):
        parameter.grad = grad
    optimizer.step()
    for parameter, grad_before in zip(everything, saved, strict=True):
        parameter.grad = grad_before


def _make(factory: Any, parameters: list[nn.Parameter]) -> Optimizer:
    try:
        optimizer = factory(parameters)
    except Exception as error:
        raise OptimizerError(f"the optimizer cannot be made for this model ({reason(error)})") from error
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(
            f"optimizer must be a function that returns a torch.optim.Optimizer, it returned {type(optimizer).__name__}"
        )
    return optimizer


def _refs(values: Mapping[str, int], names: Iterable[str]) -> tuple[Ref, ...]:
    return tuple(Ref(values[name]) for name in names)


def _new(values: dict[int, TensorSpec], spec: TensorSpec) -> int:
    value = max(values) + 1
    values[value] = spec
    return value


def _state_tensors(optimizer: Optimizer, group: int) -> int:
    """Tensors of a parameter's size that the optimizer keeps for it, found by a step on one element."""
    settings = {key: value for key, value in optimizer.param_groups[group].items() if key != "params"}
    like = next(iter(optimizer.param_groups[group]["params"]), torch.zeros(1))
    parameter = nn.Parameter(torch.zeros([1] * max(like.dim(), 1), dtype=like.dtype))
    parameter.grad = torch.zeros_like(parameter)
    probe = copy.copy(optimizer)
    probe.state = type(optimizer.state)(dict)
    probe.param_groups = [{**settings, "params": [parameter]}]
    try:
        probe.step()
    except Exception:
        return 0  # only an estimate of bytes hangs on it
    kept = probe.state[parameter].values()
    return sum(isinstance(value, Tensor) and value.shape == parameter.shape for value in kept)
