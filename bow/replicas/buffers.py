"""The central model's buffers: batch-norm statistics are averaged, all others, and extra state, are learner 0's."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bow.errors import SettingError

BufferPolicy: TypeAlias = Literal["average", "recalibrate", "first"]

NORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def check_policy(policy: str) -> None:
    policies = get_args(BufferPolicy)
    if policy not in policies:
        raise SettingError(f"buffers must be one of {', '.join(policies)}, got {policy!r}")


@torch.no_grad()
def gather_buffers(central: nn.Module, learners: Sequence[nn.Module], policy: BufferPolicy) -> None:
    """Set the central model's buffers and extra state from those of the learners."""
    averaged = _statistics(central, ("running_mean", "running_var")) if policy == "average" else set()
    kept = _statistics(central, NORM_BUFFERS) if policy == "recalibrate" else set()
    owned = [dict(buffer_slots(learner)) for learner in learners]
    for name, (module, key) in buffer_slots(central):
        if name in kept:
            continue
        values = [owner._buffers[k] for owner, k in (o[name] for o in owned)]
        if values[0] is None:
            module._buffers[key] = None
        else:
            _assign(module, key, _mean([v for v in values if v is not None]) if name in averaged else values[0])
    load_extra_state(central, extra_state(learners[0]))


@torch.no_grad()
def recalibrate(central: nn.Module, learner: nn.Module, forwards: Iterator[None]) -> None:
    """Recalibrate the statistics that a learner updates: reset them and average over the passes of `forwards`."""
    pairs = zip(central.modules(), learner.modules(), strict=True)
    norms: list[Any] = [own for own, other in pairs if _tracks_statistics(own) and other.training]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    central.eval()
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # cumulative average
        module.train()
    for _ in forwards:
        pass
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum
    central.eval()


def split_buffers(central: nn.Module, policy: BufferPolicy) -> tuple[list[Tensor], list[Tensor]]:
    """Return the central model's buffers that are means over learners, and those that are the first learner's."""
    averaged = _statistics(central, ("running_mean", "running_var")) if policy == "average" else set()
    kept = _statistics(central, NORM_BUFFERS) if policy == "recalibrate" else set()
    there = [(name, owner._buffers[key]) for name, (owner, key) in buffer_slots(central) if name not in kept]
    means = [buffer for name, buffer in there if buffer is not None and name in averaged]
    return means, [buffer for name, buffer in there if buffer is not None and name not in averaged]


def copy_buffers(source: nn.Module, target: nn.Module) -> None:
    gather_buffers(target, [source], "first")


def nan_buffers(module: nn.Module) -> Iterator[str]:
    """Yield the names of the buffers that hold NaN."""
    return (name for name, own in module.named_buffers() if own.is_floating_point() and bool(own.isnan().any()))


def buffer_state(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: buffer.clone()
        for name, (owner, key) in buffer_slots(module)
        if (buffer := owner._buffers[key]) is not None
    }


def extra_state(model: nn.Module) -> dict[str, Any]:
    """Return copies of what modules add to state dicts by `get_extra_state`, by the names of the modules."""
    own = {name: module.get_extra_state() for name, module in _with_extra_state(model)}
    return copy.deepcopy(tree_map_only(Tensor, Tensor.detach, own))  # a value of the last step has its graph


def load_extra_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    for name, module in _with_extra_state(model):
        if name in state:
            module.set_extra_state(copy.deepcopy(state[name]))


def _with_extra_state(model: nn.Module) -> list[tuple[str, nn.Module]]:
    own, plain = ("get_extra_state", "set_extra_state"), nn.Module
    return [
        (name, module)
        for name, module in model.named_modules()
        if all(getattr(type(module), each) is not getattr(plain, each) for each in own)
    ]


def load_buffers(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, (owner, key) in buffer_slots(module):
        if name in state:
            _assign(owner, key, state[name])


def _tracks_statistics(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None


def _statistics(model: nn.Module, keys: Sequence[str]) -> set[str]:
    norms = ((prefix, module) for prefix, module in model.named_modules() if _tracks_statistics(module))
    return {f"{prefix}.{key}".lstrip(".") for prefix, _ in norms for key in keys}


def buffer_slots(model: nn.Module) -> Iterator[tuple[str, tuple[nn.Module, str]]]:
    """Yield every buffer of a module tree: its full name, the module that owns it, and the name there."""
    for prefix, module in model.named_modules():
        for key in module._buffers:
            yield f"{prefix}.{key}".lstrip("."), (module, key)


def tied_buffers(model: nn.Module) -> dict[str, str]:
    """Return the further names of buffers that have several, each with the first one."""
    first: dict[int, str] = {}
    named = ((name, module._buffers[key]) for name, (module, key) in buffer_slots(model))
    known = {name: first.setdefault(id(buffer), name) for name, buffer in named if buffer is not None}
    return {name: other for name, other in known.items() if other != name}


def _mean(values: list[Tensor]) -> Tensor:
    stacked = torch.stack(values)
    # The mean of equal numbers may differ from them. Selected on the device, without synchronising it with the host.
    return torch.where((stacked == stacked[0]).all(), stacked[0], stacked.mean(dim=0))


def is_expanded(tensor: Tensor) -> bool:
    """Return whether several elements are at one place of memory, so that a tensor cannot be written to."""
    strided = tensor.layout == torch.strided
    return strided and any(not stride and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _assign(module: nn.Module, key: str, value: Tensor) -> None:
    current = module._buffers.get(key)
    fits = current is not None and current.shape == value.shape and current.dtype == value.dtype
    if current is not None and fits and not is_expanded(current):
        current.copy_(value)
    else:
        module._buffers[key] = value.clone()
