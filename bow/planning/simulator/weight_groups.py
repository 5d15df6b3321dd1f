"""Which weights are reduced and updated together, and which devices hold which part of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from bow.planning.problem.box import Box, cells, contains, volume
from bow.planning.problem.operator_graph import OperatorGraph

WeightPart: TypeAlias = tuple[Box, ...]
"""Of a group's weights: a box of each."""


@dataclass(frozen=True)
class WeightGroup:
    """Weights that the same operators read: a layer's, whose gradients travel together.

    Attributes:
        name: what its tasks are called after: the layer of the first operator that reads them.
        weights: their names.
        readers: the operators' positions.
        trainable: whether they have gradients; else they only take memory.
    """

    name: str
    weights: tuple[str, ...]
    readers: tuple[int, ...]
    trainable: bool


def weight_groups(graph: OperatorGraph) -> tuple[WeightGroup, ...]:
    """A graph's weights in groups, in the order in which they are first read."""
    readers: dict[str, list[int]] = {}
    for index, operator in enumerate(graph.operators):
        for name in dict.fromkeys(operator.weights):
            readers.setdefault(name, []).append(index)
    groups: dict[tuple[tuple[int, ...], bool], list[str]] = {}
    for name, those in readers.items():
        groups.setdefault((tuple(those), graph.weights[name].differentiable), []).append(name)
    first = [graph.operators[those[0]] for those, _ in groups]
    return tuple(
        WeightGroup(operator.layer or operator.name, tuple(names), those, trainable)
        for operator, ((those, trainable), names) in zip(first, groups.items(), strict=True)
    )


def replica_bytes(
    graph: OperatorGraph, group: WeightGroup, holdings: Mapping[WeightPart, Iterable[int]]
) -> dict[tuple[int, ...], int]:
    """How much of a group's weights which devices have in common.

    Borders of all boxes cut a weight into cells; each is held by a set of devices, whose gradients of it are summed.
    """
    shared: dict[tuple[int, ...], int] = defaultdict(int)
    for number, name in enumerate(group.weights):
        holders: dict[Box, set[int]] = defaultdict(set)
        for part, devices in holdings.items():
            holders[part[number]].update(devices)
        for cell in cells(list(holders)):
            members = {device for box, those in holders.items() if contains(box, cell) for device in those}
            shared[tuple(sorted(members))] += volume(cell) * graph.weights[name].itemsize
    return dict(shared)
