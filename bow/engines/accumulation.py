"""Gradient accumulation: a learner's batch in parts, one after another."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from bow.engines.batches import Batch
from bow.engines.task import Metrics, Step, check_loss, check_metrics


def accumulating(step: Step, parts: int) -> Step:
    return functools.partial(_in_parts, step, parts)


def parts_of(batch: Batch, parts: int) -> Iterator[tuple[Batch, float]]:
    """Yield parts of a batch, as equal as possible, each with its share of the samples."""
    leaves, spec = tree_flatten(batch)
    size = next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 1)
    parts, begin = min(parts, size), 0
    for index in range(parts):
        end = begin + size // parts + (index < size % parts)
        own = [
            leaf[begin:end] if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size else leaf
            for leaf in leaves
        ]
        yield tree_unflatten(own, spec), (end - begin) / size
        begin = end


def _in_parts(step: Step, parts: int, model: nn.Module, batch: Batch) -> tuple[Tensor, Metrics]:
    """Compute a batch part by part, freeing the activations of each; return the loss with the accumulated gradient."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss: Any = 0.0
    sums: Metrics = {}
    gradients: list[Tensor | None] = [None] * len(parameters)
    for part, share in parts_of(batch, parts):
        result = step(model, part)
        own, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        check_loss(own)
        check_metrics(metrics)
        scaled = own * share
        for index, gradient in enumerate(torch.autograd.grad(scaled, parameters, allow_unused=True)):
            before = gradients[index]
            if gradient is not None:
                gradients[index] = gradient if before is None else before + gradient
        loss = loss + scaled.detach()
        for name, value in metrics.items():
            sums[name] = sums[name] + value.detach() * share if name in sums else value.detach() * share
    pairs = zip(parameters, gradients, strict=True)
    known = torch.stack([(parameter * gradient).sum() for parameter, gradient in pairs if gradient is not None]).sum()
    return loss + (known - known.detach()), sums  # adds 0, whose gradient is the accumulated one
