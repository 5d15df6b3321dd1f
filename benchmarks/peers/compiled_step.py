"""PyTorch as an expert writes it for speed: the whole step, SGD with momentum included, compiled as one function.

Of the guards that `torch.compile` checks at each call, only those on tensors are kept: nothing else changes here.
"""

import torch

from benchmarks.contestants import Tensors, make_step
from benchmarks.peers.task import MOMENTUM, Job


def train(job: Job) -> None:
    """Train by a compiled function of weights, momenta and a batch."""
    model = job.build()
    parameters: Tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    momenta: Tensors = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    buffers: Tensors = dict(model.named_buffers())
    step = torch.compile(
        make_step(model, job.loss, job.choice.lr, MOMENTUM),
        fullgraph=True,
        dynamic=False,
        options={"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe},
    )
    samples = 0
    for inputs, targets in job.batches():
        step(parameters, momenta, buffers, inputs, targets)
        samples += len(targets)
        if job.referee.ends(model, samples):
            return
