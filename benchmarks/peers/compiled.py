"""PyTorch with the model compiled."""

import torch

from benchmarks.peers.plain import run
from benchmarks.peers.task import Job


def train(job: Job) -> None:
    """Train with `torch.compile`; the optimizer is as it is."""
    model = job.build()
    run(job, model, torch.compile(model, dynamic=False))
