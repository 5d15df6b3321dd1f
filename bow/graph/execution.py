"""Run a step graph operator by operator in capture order; updates run in the optimizer itself."""

import contextlib
import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bow.errors import GraphError, OptimizerError, reason
from bow.graph import kinds
from bow.graph.learning_step import StepOutputs, batch_tensors
from bow.graph.operator import Operator, Ref, TensorSpec, map_refs
from bow.seeds import derive_seed
from bow.values import parameter_names

if TYPE_CHECKING:
    from bow.graph.step_graph import StepGraph

OptimizerFactory: TypeAlias = Callable[[Any], Optimizer]
# Makes an optimizer from parameters, or from pairs `(name, parameter)` if its first parameter is called `named...`.


def call_factory(factory: OptimizerFactory, named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Call a factory with parameters, or with (name, parameter) pairs if it asks for names."""
    pairs = list(named)
    wants_names = "".join(parameter_names(factory)[:1]).startswith("named")
    made = factory(pairs if wants_names else [parameter for _, parameter in pairs])
    for group in getattr(made, "param_groups", ()):
        group.pop("param_names", None)  # torch keeps the names next to the parameters, which rows replace
    return made


def update_operators(
    factory: OptimizerFactory,
    model: nn.Module,
    parameters: Mapping[str, int],
    gradients: Mapping[str, int],
    values: dict[int, TensorSpec],
    first: int,
) -> list[Operator]:
    """Return an update operator for each parameter group; add their results (the new parameters) to `values`."""
    # Tracing would freeze the optimizer's hyper-parameters; this keeps schedules and state in the optimizer.
    optimizer = make_with_names(factory, [(name, p) for name, p in model.named_parameters() if p.requires_grad])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    made = []
    for group, settings in enumerate(optimizer.param_groups):
        updated = [names.get(id(p), "") for p in settings["params"]]
        if "" in updated:
            raise OptimizerError("the optimizer updates a tensor that is not a parameter of the model")
        updated = [name for name in updated if name in gradients]
        results = list(range(max(values) + 1, max(values) + 1 + len(updated)))
        values.update(zip(results, (values[parameters[name]] for name in updated), strict=True))
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


def make_with_names(factory: Any, named: list[tuple[str, nn.Parameter]]) -> Optimizer:
    """Call a factory; report its errors as errors of the user's factory."""
    try:
        optimizer = call_factory(factory, named)
    except Exception as error:
        raise OptimizerError(
            f"the optimizer cannot be made for this model ({reason(error)}); choose other settings or another optimizer"
        ) from error
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(
            f"optimizer must be a function that returns a torch.optim.Optimizer, it returned {type(optimizer).__name__}"
        )
    return optimizer


def _refs(values: Mapping[str, int], names: Iterable[str]) -> tuple[Ref, ...]:
    return tuple(Ref(values[name]) for name in names)


def _state_tensors(optimizer: Optimizer, group: int) -> int:
    """Number of parameter-sized state tensors per parameter, found by a probe step on one element."""
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
        return 0  # only affects an estimate of bytes
    kept = probe.state[parameter].values()
    return sum(isinstance(value, Tensor) and value.shape == parameter.shape for value in kept)


@torch.no_grad()
def run(
    graph: "StepGraph",
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    batch: Any,
    seed: int | None,
    optimizer: Optimizer | None,
) -> StepOutputs:
    live = inputs_of(graph, parameters, buffers, batch)
    run_operators(graph, live, seed)
    outputs = outputs_of(graph, live.__getitem__)
    if optimizer is not None:
        _update(graph, parameters, outputs.gradients, optimizer)
    return outputs


def run_operators(
    graph: "StepGraph",
    live: dict[int, Tensor],
    seed: int | None,
    order: Iterable[tuple[Operator, Iterable[int]]] | None = None,
    around: Callable[[Operator], AbstractContextManager[object]] = lambda operator: contextlib.nullcontext(),
) -> None:
    """Run all operators but the updates, in capture order or in `order`, with the values to free after each."""
    with lent_generator(graph.device, seed is not None) as generator:
        for operator, finished in order or zip(graph.operators, graph.last_uses, strict=True):
            if kinds.is_update(operator.kind):
                continue
            with around(operator):
                if operator.is_random and seed is not None:
                    generator.manual_seed(derive_seed(seed, operator.index))
                run_operator(operator, live, graph)
            for value in finished:
                live.pop(value, None)


def last_uses(operators: Sequence[Operator], results: Collection[int]) -> list[tuple[int, ...]]:
    """By operator of an order: the values to free after it (read by no later one, and not a result)."""
    last: dict[int, int] = {}
    for position, operator in enumerate(operators):
        made = (value for value in operator.results if value is not None)
        last.update(dict.fromkeys([*operator.reads, *made], position))
    finished: list[list[int]] = [[] for _ in operators]
    for value in last.keys() - results:
        finished[last[value]].append(value)
    return [tuple(sorted(values)) for values in finished]


def inputs_of(
    graph: "StepGraph", parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any
) -> dict[int, Tensor]:
    return {
        **_bound("parameter ", graph.parameters, parameters, graph),
        **_bound("buffer ", graph.buffers, buffers, graph),
        **_bound("batch", graph.batch, batch_tensors(batch), graph),
        **graph.constants,
    }


def outputs_of(graph: "StepGraph", tensor_of: Callable[[int], Tensor]) -> StepOutputs:
    groups = (graph.gradients, graph.new_buffers, graph.metrics)
    return StepOutputs(
        tensor_of(graph.loss),
        *({name: tensor_of(value) for name, value in names.items()} for names in groups),
    )


def run_operator(operator: Operator, live: dict[int, Tensor], graph: "StepGraph") -> None:
    def tensor(ref: Ref) -> Tensor:
        return live[ref.value]

    arguments = map_refs(tensor, operator.arguments)
    keywords = {name: map_refs(tensor, value) for name, value in operator.keywords.items()}
    try:
        # oneDNN's layer saves what its backward pass needs only if gradients are enabled; no tensor here requires grad.
        with torch.enable_grad() if kinds.has_recurrent_layer(operator) else contextlib.nullcontext():
            made = kinds.kernel_of(operator.kind)(*arguments, **keywords)
    except Exception as error:
        raise failure(operator, graph, error) from error
    for value, result in zip(operator.results, _flat(made), strict=True):
        if value is not None:
            live[value] = result


def failure(operator: Operator, graph: "StepGraph", error: Exception) -> GraphError:
    shapes = ", ".join(str(graph.values[value]) for value in operator.reads)
    where = f" of {operator.module}" if operator.module else ""
    return GraphError(f"operator {operator.index}, {operator.kind}({shapes}){where}, failed: {reason(error)}")


def _flat(made: Any) -> Iterator[Any]:
    if isinstance(made, tuple | list):
        for part in made:
            yield from _flat(part)
    else:
        yield made


def _bound(what: str, names: Mapping[str, int], tensors: Mapping[str, Tensor], graph: "StepGraph") -> dict[int, Tensor]:
    if names.keys() != tensors.keys():
        differing = sorted(names.keys() ^ tensors.keys())[0]
        state = "is missing" if differing in names else "is not in the graph"
        raise GraphError(f"{what}{differing} {state}; give exactly what the graph was captured with")
    return {value: _fitted(f"{what}{name}", tensors[name], graph.values[value]) for name, value in names.items()}


def _fitted(name: str, tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Return the tensor in the memory layout of the capture."""
    given = TensorSpec.of(tensor)
    if (given.shape, given.dtype) != (spec.shape, spec.dtype):
        raise GraphError(f"{name} is {given}, the graph was captured with {spec}; capture it again for other shapes")
    if given.lies_like(spec):
        return tensor.detach()
    return spec.empty(tensor.device).copy_(tensor)


def _update(
    graph: "StepGraph", parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], optimizer: Optimizer
) -> None:
    for operator in graph.operators:
        if kinds.is_update(operator.kind):
            weights = [parameters[name] for name in operator.parameters]
            apply_update(operator, optimizer, weights, [gradients[name] for name in operator.parameters])


@contextlib.contextmanager
def lent_generator(place: torch.device | str, seeded: bool = True) -> Iterator[torch.Generator]:
    """Yield a device's default generator; if it is going to be seeded, restore its state afterwards."""
    device = torch.device(place)
    on_gpu = device.type == "cuda"
    generator = torch.cuda.default_generators[device.index or 0] if on_gpu else torch.default_generator
    state = generator.get_state() if seeded else None
    try:
        yield generator
    finally:
        if state is not None:
            generator.set_state(state)
