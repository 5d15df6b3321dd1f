"""The operators of the papers' networks, and their work."""

import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch

import bow
from benchmarks.costs.machine import Work
from bow.graph import Operator, StepGraph, kinds
from bow.models import NETWORKS

T = TypeVar("T")


_BACKWARD = "aten.convolution_backward.default"


@functools.cache
def population(network: str, size: str = "paper", samples: int | None = None) -> Mapping[str, Work]:
    """Return the distinct operators of a network's training step."""
    return works_of(captured(network, size, samples))


def captured(network: str, size: str, samples: int | None = None) -> StepGraph:
    """Capture a network's training step; computes nothing, and allocates no weights."""
    chosen = NETWORKS[network]
    with torch.device("meta"):
        model, batch = chosen.build(size), chosen.batch(size, samples)
    return bow.capture(model, batch, chosen.loss)


def works_of(graph: StepGraph) -> dict[str, Work]:
    """Return the work of the distinct operators of a step, by key; without views and updates."""
    works: dict[str, Work] = {}
    for operator in graph.operators:
        if is_worth_measuring(operator):
            works[key_of(operator, graph)] = Work(kind_of(operator), operator.flops, operator.bytes_moved)
    return works


def is_worth_measuring(operator: Operator) -> bool:
    """Whether an operator takes time: not a view or an update, and not empty."""
    only_allocates = operator.kind.split(".")[1].startswith(("empty", "new_empty"))
    return not (operator.is_view or kinds.is_update(operator.kind) or only_allocates) and operator.bytes_moved > 0


def key_of(operator: Operator, graph: StepGraph) -> str:
    """Return an operator's kind, and the shapes of its inputs and outputs.

    Convolutions with the same inputs may differ in their stride, and thus in their outputs.
    """
    read = " ".join(str(list(graph.values[value].shape)) for value in operator.reads)
    made = " ".join(str(list(graph.values[value].shape)) for value in operator.results if value is not None)
    return f"{kind_of(operator)} {read} -> {made}"


def kind_of(operator: Operator) -> str:
    """Return an operator's kind; a convolution's backward pass is divided into the two gradients."""
    if operator.kind != _BACKWARD:
        return operator.kind
    return f"{_BACKWARD} {'input' if operator.arguments[-1][0] else 'weight'}"


def several(networks: Iterable[str], size: str, batch_sizes: Iterable[int]) -> dict[str, Work]:
    """Return the distinct operators of several networks at several batch sizes."""
    sizes = list(batch_sizes)
    works: dict[str, Work] = {}
    for network in networks:
        for samples in sizes:
            works |= population(network, size, samples)
    return works


def drawn(works: Mapping[str, T], most: int, seed: int) -> dict[str, T]:
    """Return a random subset in the original order; all, if there are not more."""
    chosen: Sequence[str] = list(works)
    if len(chosen) > most:
        kept = set(random.Random(seed).sample(chosen, most))
        chosen = [name for name in chosen if name in kept]
    return {name: works[name] for name in chosen}
