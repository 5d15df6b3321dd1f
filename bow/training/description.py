"""What a tuner's choice depends on, as plain values: the key under which it is kept on disk."""

import functools
import math
import platform
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bow.device import StreamDevice, available_cores, processor
from bow.training.blueprint import Blueprint
from bow.training.lanes import Request
from bow.training.opened import Opened
from bow.tuner import Tuner

RECIPE = 1
"""Changes with what a calibration tries, so that choices of an earlier version are not taken for those of this one."""


def describe(request: Request, blueprint: Blueprint, opened: Opened, tuner: Tuner, loss: Callable[..., Any]) -> Any:
    """Everything that a choice depends on.

    Args:
        request: what is left open.
        blueprint: of the learners.
        opened: the data.
        tuner: the tuner's settings.
        loss: the user's loss or step.
    """
    return {
        "recipe": RECIPE,
        "model": [type(blueprint.model).__qualname__, *_tensors(blueprint.model)],
        "task": _name(loss),
        "optimizer": _name(blueprint.optimizer),
        "sync": repr(blueprint.sync),
        "batch": [_tensor(leaf) for leaf in tree_leaves(opened.example) if isinstance(leaf, Tensor)],
        "stream": type(opened.stream).__name__,
        "task settings": [blueprint.precision, blueprint.clip_norm, blueprint.memory, blueprint.dispatch],
        "asked for": [request.engine, request.learners, request.compile, request.most],
        "length": None if request.samples is None else math.floor(math.log(max(request.samples, 1), 4)),
        "tuner": [tuner.objective, tuner.threshold, tuner.share],
        "machine": [processor(), len(available_cores()), torch.get_num_threads(), *_device(blueprint)],
        "versions": [sys.modules["bow"].__version__, torch.__version__, platform.python_version()],
    }


def _tensors(model: nn.Module) -> list[str]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [f"{name} {_tensor(tensor)} {tensor.requires_grad}" for name, tensor in named]


def _tensor(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def _name(function: Callable[..., Any]) -> str:
    """A function, and what `functools.partial` has bound; the learning rate does not matter for how fast it runs."""
    if isinstance(function, functools.partial):
        bound: Mapping[str, Any] = {name: value for name, value in function.keywords.items() if name != "lr"}
        return f"{_name(function.func)} {bound!r}"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _device(blueprint: Blueprint) -> list[str]:
    device = blueprint.device
    place = device.torch_device if isinstance(device, StreamDevice) else device
    return [type(device).__name__, torch.cuda.get_device_name(place)] if place.type == "cuda" else [str(place)]
