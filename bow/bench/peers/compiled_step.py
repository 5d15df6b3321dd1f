"""PyTorch as an expert writes it for speed: the whole step, SGD with momentum included, compiled as one function.

Of the guards that `torch.compile` checks at each call, only those on tensors are kept: nothing else changes here.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from bow.bench.peers.task import MOMENTUM, Job

Tensors: TypeAlias = dict[str, Tensor]


def train(job: Job) -> None:
    """Train by a compiled function of weights, momenta and a batch."""
    model = job.build()
    parameters: Tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    momenta: Tensors = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    step = torch.compile(
        make_step(model, job.loss, job.choice.lr),
        fullgraph=True,
        dynamic=False,
        options={"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe},
    )
    samples = 0
    for inputs, targets in job.batches():
        step(parameters, momenta, inputs, targets)
        samples += len(targets)
        if job.referee.ends(model, samples):
            return


def make_step(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], lr: float
) -> Callable[[Tensors, Tensors, Tensor, Tensor], None]:
    """The step of a model without buffers."""

    def forward(parameters: Tensors, inputs: Tensor, targets: Tensor) -> Tensor:
        return loss(functional_call(model, parameters, (inputs,)), targets)

    def step(parameters: Tensors, momenta: Tensors, inputs: Tensor, targets: Tensor) -> None:
        gradients, _ = grad_and_value(forward)(parameters, inputs, targets)
        for name, parameter in parameters.items():
            momenta[name].mul_(MOMENTUM).add_(gradients[name])
            parameter.sub_(momenta[name], alpha=lr)

    return step
