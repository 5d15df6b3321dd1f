"""A single learner in plain PyTorch whose whole step is one CUDA graph, as PyTorch's notes on CUDA graphs have it."""

import itertools

import torch
from torch import Tensor

from benchmarks.peers.task import Job

WARM_UP_STEPS = 3  # Steps as usual before the capture, on a stream of their own; they train as well


def train(job: Job) -> None:
    """Train by replaying a captured step, which takes its batch by the numbers of its samples."""
    model = job.build()
    optimizer = job.make_optimizer(model.parameters())
    inputs, targets = job.data.train
    orders = job.batches().indices()
    indices = next(orders).clone()  # where every step finds its batch

    def forward_and_backward() -> None:
        loss: Tensor = job.loss(model(inputs.index_select(0, indices)), targets.index_select(0, indices))
        loss.backward()  # type: ignore[no-untyped-call]

    # Neither allocation nor lazy initialisation of libraries may happen first in a capture, nor on the default stream.
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for order in itertools.islice(orders, WARM_UP_STEPS):
            indices.copy_(order)
            optimizer.zero_grad(set_to_none=True)
            forward_and_backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)  # so that the graph writes gradients anew, in its own memory
    with torch.cuda.graph(graph):
        forward_and_backward()
        optimizer.step()

    samples = WARM_UP_STEPS * len(indices)
    for order in orders:
        indices.copy_(order)
        graph.replay()
        samples += len(indices)
        if job.referee.ends(model, samples):
            return
