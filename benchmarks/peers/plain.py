"""Plain PyTorch: one model, one batch at a time."""

from collections.abc import Callable
from typing import Any

from torch import nn

from benchmarks.peers.task import Job


def train(job: Job) -> None:
    """Train as one would write it."""
    run(job, job.build())


def run(
    job: Job,
    model: nn.Module,
    forward: Callable[..., Any] | None = None,
    rate: Callable[[int], float] | None = None,
) -> None:
    """The loop."""
    optimizer = job.make_optimizer(model.parameters())
    forward = model if forward is None else forward
    samples = 0
    for inputs, targets in job.batches():
        if rate is not None:
            optimizer.param_groups[0]["lr"] = rate(samples)
        optimizer.zero_grad()
        job.loss(forward(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        samples += len(targets)
        if job.referee.ends(model, samples):
            return
