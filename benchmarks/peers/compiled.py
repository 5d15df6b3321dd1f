"""PyTorch with the model compiled."""

import torch

from bow.bench.peers.plain import run
from bow.bench.peers.task import Job


def train(job: Job) -> None:
    """Train with `torch.compile`; the optimizer is as it is."""
    model = job.build()
    run(job, model, torch.compile(model, dynamic=False))
