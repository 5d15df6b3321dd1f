"""Every engine of a GPU follows `eager` on the same GPU."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from typing import Any

import torch
from torch import Tensor

import bow
from benchmarks.gpu.machine import Machine
from tests.gpu.case import Case
from tests.gpu.trainings import ENGINES, OPTIMIZERS, batches, exact, few, made, training, weights

MODELS = ("logistic", "mlp", "lenet", "resnet8", "lstm", "transformer")
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9}
LEARNERS = (2, 4, 1)
ROUNDS, TINY_ROUNDS = 20, 3

COMPILED = (("mlp", "momentum", 4), ("lenet", "momentum", 2))
"""What `fused` is really compiled for; it takes most of a minute each."""

_Trained = tuple[Tensor, list[Tensor], dict[str, Tensor]]
_expected: dict[tuple[Any, ...], _Trained] = {}


def cases(fake: bool) -> list[Case]:
    every = [
        Case(
            f"agreement: {engine}, {model}, {optimizer}, {learners} learners, {_name(dtype)}",
            functools.partial(_follows, engine, model, optimizer, learners, dtype),
        )
        for dtype, learners, optimizer, model, engine in (
            itertools.product(TOLERANCES, LEARNERS, OPTIMIZERS, MODELS, ENGINES) if not fake else _tiny()
        )
    ]
    compiled = [
        Case(
            f"agreement: fused, compiled, {model}, {optimizer}, {learners} learners",
            functools.partial(_follows, "fused", model, optimizer, learners, torch.float32, compiled=True),
            needs_gpu="what is compiled for a CPU is compared elsewhere",
        )
        for model, optimizer, learners in COMPILED
    ]
    return [*every[: len(MODELS) * len(ENGINES)], *compiled, *every[len(MODELS) * len(ENGINES) :]]


def _tiny() -> list[tuple[torch.dtype, int, str, str, str]]:
    small = [(torch.float64, 2, "momentum", model, engine) for model in MODELS[:3] for engine in ENGINES]
    large = [(torch.float64, 2, "momentum", model, "graph+round") for model in MODELS[3:]]
    alone = [(torch.float32, 1, "adamw", "mlp", engine) for engine in ("graph", "fused")]
    return [*small, *large, (torch.float64, 2, "adamw", "mlp", "graph"), *alone]


def _follows(
    engine: str,
    model: str,
    optimizer: str,
    learners: int,
    dtype: torch.dtype,
    machine: Machine,
    compiled: bool = False,
) -> None:
    common = (model, optimizer, learners, dtype)
    key = (str(machine.device.torch_device), *common)
    if key not in _expected:
        _expected[key] = _trained(machine, "eager", *common)[0]
    expected = _expected[key]
    found, ran = _trained(machine, engine, *common, compiled=compiled)
    tolerance = TOLERANCES[dtype]
    for index, (loss, own) in enumerate(zip(expected[1], found[1], strict=True)):
        torch.testing.assert_close(own, loss, rtol=tolerance, atol=tolerance, msg=_said(f"losses of round {index}"))
    torch.testing.assert_close(found[0], expected[0], rtol=tolerance, atol=tolerance, msg=_said("weights"))
    torch.testing.assert_close(found[2], expected[2], rtol=tolerance, atol=tolerance, msg=_said("buffers"))
    # Only recurrent layers have no vectorised form on every device.
    assert ran == engine or (ran.startswith(engine) and model == "lstm"), f"{engine} ran as {ran}"


def _trained(
    machine: Machine, engine: str, model: str, optimizer: str, learners: int, dtype: torch.dtype, compiled: bool = False
) -> tuple[_Trained, str]:
    """Weights, losses and buffers after some rounds, on the host."""
    settings: dict[str, Any] = {"dtype": dtype, "learners": learners, "optimizer": OPTIMIZERS[optimizer]}
    with contextlib.ExitStack() as stack:
        stack.enter_context(exact())
        if compiled:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            replicas = stack.enter_context(contextlib.closing(made(machine, model, engine, **settings)))
        else:
            replicas = stack.enter_context(training(machine, model, engine, **settings))
        losses = [
            replicas.round(batches(machine, model, t, learners, dtype))
            for t in range(few(machine, ROUNDS, TINY_ROUNDS))
        ]
        rows = weights(machine, replicas)
        return (rows, [loss.detach().cpu().clone() for loss in losses], _buffers(replicas)), replicas.engine


def _buffers(replicas: bow.Replicas) -> dict[str, Tensor]:
    modules = {f"learner {j}": replicas.learner(j) for j in range(replicas.learners)} | {"central": replicas.central}
    return {
        f"{name}: {key}": buffer.detach().cpu().clone()
        for name, module in modules.items()
        for key, buffer in module.named_buffers()
    }


def _said(what: str) -> Any:
    return lambda message: f"{what}: {message}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
