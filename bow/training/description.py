"""Provenance of a run, and the description of a training under which the tuner's choice is cached."""

import datetime
import functools
import math
import platform
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bow.devices import StreamDevice, available_cores, processor
from bow.graph.refusal import code_text
from bow.replicas.layout import memory_order
from bow.replicas.model import check_trainable
from bow.replicas.optimizer import make_optimizer
from bow.runtime.loading import content_hash, is_built
from bow.training.data_source import DataSource
from bow.training.replicas import ReplicasConfig
from bow.training.trials import Request
from bow.tuner import Tuner

RECIPE = 4  # version of what a calibration tries: invalidates choices of earlier versions
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def provenance() -> dict[str, str]:
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_initialized() else ""  # type: ignore[no-untyped-call]
    bow, commit = sys.modules["bow"].__version__, _commit()
    words = sys.orig_argv
    first = 1 if len(words) > 1 and Path(words[1]).name == "bow" else 0
    return {
        "began": f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}",
        "command": shlex.join([Path(words[first]).name, *words[first + 1 :]]),  # `bow train ...`, `python train.py`
        **({"commit": commit} if commit else {}),
        "versions": f"bow {bow}, torch {torch.__version__}, Python {platform.python_version()}",
        "machine": f"{processor()}, {len(available_cores())} cores{gpu}",
    }


@functools.cache  # the imported code is that of the first call
def _commit() -> str | None:
    """Return the current directory's git commit, with "-dirty" if files differ; None outside a repository."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=2).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def describe(request: Request, opened: DataSource, tuner: Tuner, loss: Callable[..., Any]) -> Any:
    replicas_config, task, model = request.replicas, request.replicas.task, request.replicas.model
    named = [*model.named_parameters(), *model.named_buffers()]
    # The text and tensors of modules outside torch do not determine what they compute.
    kinds = {type(module) for module in model.modules() if not type(module).__module__.startswith("torch.")}
    given = replicas_config.device
    place = given.torch_device if isinstance(given, StreamDevice) else given
    device = [type(given).__name__, torch.cuda.get_device_name(place)] if place.type == "cuda" else [str(place)]
    tensors = [f"{name} {_tensor(tensor)} {tensor.requires_grad}" for name, tensor in named]
    return {
        "recipe": RECIPE,
        "model": [_text(model), *tensors, *sorted(_name(kind.forward) for kind in kinds)],
        "task": _name(loss),
        "optimizer": _optimizer(replicas_config),
        "sync": repr(replicas_config.sync),
        "batch": [_tensor(leaf) for leaf in tree_leaves(opened.example) if isinstance(leaf, Tensor)],
        "stream": type(opened.stream).__name__,
        "task settings": [
            task.precision,
            task.clip_norm,
            task.offload,
            task.engine.accumulate,
            task.engine.dispatch,
            task.engine.memory_format,
            [memory_order(parameter) for parameter in model.parameters()],
        ],
        "schedule": None if task.schedule is None else content_hash(task.schedule.to_json()),
        "asked for": [request.engine, request.learners, request.compile, request.most],
        "length": None if request.samples is None else math.floor(math.log(max(request.samples, 1), 4)),
        "tuner": [tuner.objective, tuner.threshold, tuner.share],
        "machine": [processor(), len(available_cores()), torch.get_num_threads(), *device],
        "native runtime": is_built() if replicas_config.on_cpu else None,
        "versions": [sys.modules["bow"].__version__, torch.__version__, platform.python_version()],
    }


def _tensor(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def _optimizer(replicas_config: ReplicasConfig) -> list[str]:
    """Return the optimizer's kind and settings; the learning rate does not affect speed."""
    trainable = [parameter for parameter in replicas_config.model.parameters() if parameter.requires_grad]
    check_trainable(trainable)
    made = make_optimizer(replicas_config.optimizer, replicas_config.model)
    settings = [{k: v for k, v in group.items() if k not in ("params", "lr")} for group in made.param_groups]
    return [type(made).__qualname__, *map(_text, settings)]


def _name(function: Any) -> str:
    """Identify functions by name, code hash and arguments bound by `functools.partial`, other values by their text."""
    if isinstance(function, functools.partial):
        bound = [*map(_name, function.args), *(f"{name}={_name(value)}" for name, value in function.keywords.items())]
        return f"{_name(function.func)}({', '.join(bound)})"
    if isinstance(function, Tensor):
        return _tensor(function)
    if isinstance(function, types.FunctionType):
        return f"{function.__module__}.{function.__qualname__} {content_hash(*code_text(function.__code__))}"
    return _text(function)


def _text(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__} {_ADDRESS.sub('', repr(value))}"
