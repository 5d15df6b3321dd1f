"""Prepare a user's model as a template, and replicate the template."""

import contextlib
import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bow.data.opening import PrivateRandom
from bow.errors import ModelError, reason
from bow.graph.learning_step import leave_weights, refuse_parameter_hooks, refuse_scripted
from bow.replicas.layout import ParameterLayout

PARALLEL_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule"}


def prepare_template(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build or unwrap the user's model and check that bow can replicate it."""
    template = model if isinstance(model, nn.Module) else _build(model, seed)
    template = getattr(template, "_orig_mod", template)  # wrapped by torch.compile
    refuse_scripted(template)
    if any(tensor.is_meta and not is_lazy(tensor) for tensor in _tensors(template)):
        raise ModelError("the model is on the meta device, where tensors have no values; build it on the CPU")
    wrappers = {base.__name__ for base in type(template).__mro__} & PARALLEL_WRAPPERS
    if wrappers:
        raise ModelError(f"the model is wrapped in {wrappers.pop()}; pass the plain module, bow replicates it itself")
    refuse_parameter_hooks(template)
    _refuse_shared_memory(template)
    for name, parameter in template.named_parameters():
        if not parameter.requires_grad or is_lazy(parameter) or torch.isfinite(parameter.detach().sum()):
            continue  # a sum is finite only if all elements are, and takes a tenth of the time
        if wrong := int((~torch.isfinite(parameter.detach())).sum()):
            raise ModelError(f"parameter {name!r} has {wrong} elements that are not finite; initialise it")
    return template


is_dense = torch.ops.aten.is_non_overlapping_and_dense


def _refuse_shared_memory(template: nn.Module) -> None:
    """Refuse parameters that are tied by their memory, not by being one parameter: as rows they would come apart."""
    placed = sorted(
        # Of one with gaps, the first element: columns of one matrix interleave.
        (begin, begin + (p.nbytes if is_dense(p) else p.element_size()), name, p.requires_grad)
        for name, p in template.named_parameters()
        if not is_lazy(p) and p.layout is torch.strided and p.numel() and (begin := p.data_ptr())
    )
    before = (0, "", False)  # of those so far, the one that ends last
    for begin, end, name, trains in placed:
        until, other, trains_too = before
        if begin < until and (trains or trains_too):
            raise ModelError(
                f"parameters {other!r} and {name!r} share memory but are two objects, which would be trained apart; "
                "assign one parameter to both names, or clone its data"
            )
        before = max(before, (end, name, trains))


@contextlib.contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    if not (training and model.training):  # then its modules keep their modes, as those of learners do
        model.train(training)
    try:
        yield
    finally:
        for module, before in modes.items():
            module.training = before


def has_lazy_modules(model: nn.Module) -> bool:
    """Return whether some parameters or buffers get their shapes in the first forward pass."""
    return any(map(is_lazy, _tensors(model)))


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return itertools.chain(model.parameters(), model.buffers())


def num_trainable(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad and not is_lazy(p))


def check_trainable(parameters: list[nn.Parameter]) -> None:
    if any(is_lazy(parameter) for parameter in parameters):
        raise ModelError("the model has lazy modules without shapes; run one batch through it first")
    if not parameters:
        raise ModelError("the model has no trainable parameters (0 with requires_grad=True); there is nothing to train")
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    if len(dtypes) > 1:
        raise ModelError(f"the trainable parameters have dtypes {', '.join(dtypes)}; cast the model to one of them")
    if dtypes[0] not in {"float32", "float64", "bfloat16"}:
        raise ModelError(
            f"the trainable parameters have dtype {dtypes[0]}; use float32, float64 or bfloat16 "
            '(mixed precision: engine=bow.Engine(precision="bfloat16"))'
        )


def frozen_parameters(template: nn.Module, layout: ParameterLayout, device: torch.device) -> dict[int, nn.Parameter]:
    """Return one copy, shared by all learners, of parameters outside the row, by the id of the template's."""
    return {
        id(parameter): nn.Parameter(parameter.detach().to(device, copy=True), requires_grad=parameter.requires_grad)
        for name, parameter in template.named_parameters()
        if name not in layout.names
    }


def replicate(
    template: nn.Module,
    layout: ParameterLayout,
    row: Tensor,
    device: torch.device,
    frozen: Mapping[int, nn.Parameter] | None = None,
) -> nn.Module:
    """Return a copy of the template whose trainable parameters are views of `row`."""
    named = dict(template.named_parameters(remove_duplicate=False))
    memo: dict[int, Any] = {id(named[name]): nn.Parameter(view) for name, view in layout.views(row.detach()).items()}
    memo.update(frozen or {})
    try:
        replica = copy.deepcopy(template, memo)
    except Exception as error:
        raise ModelError(
            f"{type(template).__name__} cannot be copied ({reason(error)}); "
            "remove what copy.deepcopy cannot copy from the module"
        ) from error
    leave_weights(replica)
    placed: dict[int, tuple[Tensor, Tensor]] = {}  # a buffer of several modules stays one tensor
    for module in replica.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                _, module._buffers[name] = placed.setdefault(id(buffer), (buffer, buffer.to(device)))
    return replica


def _build(builder: Any, seed: int) -> nn.Module:
    if not callable(builder):
        raise ModelError(f"model must be an nn.Module or a function that builds one, got {type(builder).__name__}")
    name = getattr(builder, "__name__", type(builder).__name__)
    if needed := _arguments(builder):
        raise ModelError(
            f"model must be an nn.Module or a function of no arguments, got {name}, which needs {', '.join(needed)}; "
            f"pass {name}(...) itself, or functools.partial({name}, ...)"
        )
    with torch.random.fork_rng(devices=[]), PrivateRandom(seed).active():  # also of Python and NumPy
        torch.manual_seed(seed)  # of all devices
        built = builder()
    if not isinstance(built, nn.Module):
        raise ModelError(f"the model function must return an nn.Module, got {type(built).__name__}")
    return built


def _arguments(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]
