"""Compare a captured step with plain autograd on a batch: the loss, every gradient, every buffer."""

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.devices.memory import host_memory
from bow.errors import warn_user
from bow.graph.learning_step import LearningStep, Step, StepOutputs
from bow.graph.tracing import custom_functions
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.partition import Partition, everything_on
from bow.planning.tiles.capture import CapturedOperators, refusal
from bow.planning.tiles.communication import ProcessGroup
from bow.planning.tiles.runtime import TileRuntime

COPIES = 3  # peak memory of the comparison, in multiples of the bytes of all operator outputs
# Gradients that are pure rounding error, such as that of a bias before batch norm, have no meaningful relative error.
# So a gradient may differ by `NOISE` times its change when every weight is perturbed by up to `ROUNDING` ulps.
ROUNDING, NOISE = 8, 16
MOVED = 0.1  # of a weight's size, to move it where gradients are zero, as behind a layer that begins at zero
CPU = torch.device("cpu")


def check_agreement(captured: CapturedOperators, model: nn.Module, batch: Any, step: Step) -> None:
    """Raise `CaptureError` if a captured step differs from the step itself, with dropout disabled."""
    # The comparison is skipped for models on the meta device and if the host lacks memory.
    if any(tensor.is_meta for tensor in tree_leaves([list(model.parameters()), list(model.buffers()), batch])):
        return
    if COPIES * sum(tensor.num_bytes for tensor in captured.graph.tensors.values()) > host_memory()[1]:
        name = type(model).__name__
        warn_user(f"the captured step of {name} was not compared with PyTorch: not enough memory")
        return
    model = copy.deepcopy(model).to(CPU)
    batch = tree_map_only(Tensor, lambda tensor: tensor.to(CPU, copy=True), batch)
    hooked = (path for path, module in model.named_modules() if module._backward_hooks or module._backward_pre_hooks)
    suspects = [f"the backward hook of module {path!r}" for path in hooked]
    expected = _by_autograd(captured, model, batch, step, suspects)
    _compare(captured, model, batch, step, suspects, expected, _by_tiles(captured, model, batch))
    gradients = (expected[f"gradient of {name!r}"] for name, each in model.named_parameters() if each.requires_grad)
    if suspects or not all(map(torch.any, gradients)):
        _move(model)
        try:
            expected, found = _by_autograd(captured, model, batch, step, None), _by_tiles(captured, model, batch)
        except (ArithmeticError, RuntimeError):  # a matrix, say, that cannot be inverted any more
            return
        _compare(captured, model, batch, step, suspects, expected, found)


def _compare(
    captured: CapturedOperators,
    model: nn.Module,
    batch: Any,
    step: Step,
    suspects: list[str],
    expected: dict[str, Tensor],
    found: dict[str, Tensor],
) -> None:
    if any(_differences(found, expected, {})):
        moved = _by_autograd(captured, model, batch, step, None, ROUNDING)
        noise = {name: _distance(moved[name], value) for name, value in expected.items()}
        off = dict(_differences(found, expected, noise))
        if off:
            name, amount = next(iter(off.items()))
            lost = (
                " and ".join(dict.fromkeys(suspects))
                or f"a tensor hook after operator {_last(captured.graph, off)!r}, or similar"
            )
            what = f"would lose {lost}: the {name} would be off by {amount}"
            remedy = "leave out hooks, and autograd functions with a custom backward pass"
            if not name.startswith("gradient"):  # of which neither is the cause
                what = f"would lose a change in place, or similar: the {name} would be off by {amount}"
                remedy = "change a copy"
            raise refusal(type(model).__name__, what, remedy)


def _move(model: nn.Module) -> None:
    """Change every weight at random, those that are zero as well."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.is_floating_point() and weight.numel():
            size = float(weight.detach().square().mean().sqrt()) or 1.0
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.data += (MOVED * size * noise).to(weight.dtype)


def _by_autograd(
    captured: CapturedOperators, model: nn.Module, batch: Any, step: Step, suspects: list[str] | None, units: int = 0
) -> dict[str, Tensor]:
    """Return the step's results by name, with weights perturbed by up to `units` ulps."""
    generator = torch.Generator().manual_seed(0)

    def moved(weight: Tensor) -> Tensor:
        if not units or not weight.is_floating_point():
            return weight
        part = 2 * torch.rand(weight.shape, generator=generator, dtype=weight.dtype) - 1
        return weight * (1 + units * torch.finfo(weight.dtype).eps * part)

    def between(loss: Tensor) -> None:
        if suspects is not None:
            own = (each for each in custom_functions(loss) if not each.__module__.startswith("torch."))
            suspects.extend(f"the backward pass of {each.__qualname__}" for each in own)

    drops = any(operator.kind == "dropout" for operator in captured.graph.operators)
    weights = {name: moved(weight.detach()) for name, weight in model.named_parameters()}
    dropping = _NothingDropped() if drops else contextlib.nullcontext()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=[]), dropping:
        made = LearningStep(model, step).run(weights, dict(model.named_buffers()), batch, between)
    return dict(_named(made))


def _by_tiles(captured: CapturedOperators, model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """Return the results of the captured operators, unsplit, by name."""

    def without_drops(operator: PlanOperator) -> PlanOperator:
        if operator.kind != "dropout":
            return operator
        return replace(operator, attributes={**operator.attributes, "p": operator.attributes["p"] // 1})

    graph = replace(captured.graph, operators=tuple(map(without_drops, captured.graph.operators)))
    partition = Partition(graph.hash, everything_on(graph))
    optimizer = functools.partial(torch.optim.SGD, lr=0.0)
    runtime = TileRuntime(replace(captured, graph=graph), partition, model, optimizer, ProcessGroup(CPU, is_alone=True))
    loss, after = runtime.step(batch, 0), copy.deepcopy(model)
    runtime.gather_into(after)
    zeros = {name: torch.zeros_like(weight) for name, weight in model.named_parameters() if weight.requires_grad}
    return dict(_named(StepOutputs(loss, zeros | runtime.gradients(), dict(after.named_buffers()), {})))


def _named(made: StepOutputs) -> Iterator[tuple[str, Tensor]]:
    yield "loss", made.loss
    yield from ((f"gradient of {name!r}", gradient.detach()) for name, gradient in made.gradients.items())
    yield from ((f"buffer {name!r}", buffer) for name, buffer in made.buffers.items())


def _differences(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], noise: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Yield name and difference of every result that differs by more than rounding."""
    for name, wanted in expected.items():
        off, size = _distance(found[name], wanted), _distance(wanted.nan_to_num(), torch.zeros_like(wanted))
        has_rounding = wanted.is_floating_point() or wanted.is_complex()
        rounding = torch.finfo(wanted.dtype).eps ** 0.5 * size + NOISE * noise.get(name, 0.0) if has_rounding else 0.0
        if off > rounding:
            yield name, f"{off:.3g}, where the largest element is {size:.3g}"


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two elements; infinite if exactly one of them is NaN."""
    if not other.numel():
        return 0.0
    wide = torch.complex128 if other.is_complex() else torch.float64
    difference = (one.to(wide) - other.to(wide)).abs().where(one != other, 0.0)
    return float(difference.where(one.isnan() == other.isnan(), torch.inf).nan_to_num(0.0, torch.inf).max())


def _last(graph: OperatorGraph, off: Mapping[str, str]) -> str:
    """Return the operator closest to the loss among those whose weight gradients differ."""
    for operator in reversed(graph.operators):
        if any(f"gradient of {name!r}" in off for name in operator.weights):
            return operator.name
    return graph.operators[0].name


class _NothingDropped(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Disable dropout on a CPU, which multiplies by a `bernoulli_` mask divided by p: the mask is filled with p."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.bernoulli_.float:
            mask, p = (*args, 0.5)[:2]  # a default argument is omitted from args
            if p > 0:
                return mask.fill_(p)
        return func(*args, **(kwargs or {}))
