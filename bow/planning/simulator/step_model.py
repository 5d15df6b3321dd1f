"""Tasks of a step on devices and channels, and everything about a step that is independent of the partition."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias

from bow.planning.problem.box import Box, common_refinement, contains, volume
from bow.planning.problem.device_topology import NS_PER_US, DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Tilings
from bow.planning.rules.rule import Rules
from bow.planning.simulator.costs import Costs, TaskCosts

_MASK = 2**64 - 1
_FACTOR = 0x9E3779B97F4A7C15
_START = 0x243F6A8885A308D3

Identity: TypeAlias = tuple[int, int, int, int]  # rank, tile, device, code: unique within a step


class TaskKind(IntEnum):
    """The kinds of tasks of a step."""

    FORWARD = 0  # a tile's forward pass
    FORWARD_SUM = 1  # sum over tiles inside the forward pass, such as batch statistics
    TRANSFER = 2  # a part of a tensor to another device, for all tiles there that read it
    GRADIENT = 3  # the gradient of such a part, back
    BACKWARD = 4  # a tile's backward pass
    BACKWARD_SUM = 5  # sum over tiles inside the backward pass
    GATHER = 6  # zero time: a device has all its gradients of a weight group
    REDUCTION = 7  # sum of the gradients of a part of a weight group, over the devices that hold it
    UPDATE = 8  # the optimizer's step for a device's part of a weight group
    AVERAGING = 9  # average of the weights of corresponding devices of all learners


@dataclass(frozen=True)
class Task:
    """A task of a step: takes time, or only orders others."""

    # Tasks that become ready at the same time run in order of identity, which does not depend on when a task was
    # created. A task's rank is higher than those of all its predecessors. So every simulation algorithm gives the same
    # timeline.

    kind: TaskKind
    owner: int  # number of its operator or weight group, counted through all learners
    rank: int  # the same for all tasks of its kind and owner
    tile: int  # number of its tile, of the tile whose output is sent, of the sum, or 0
    device: int  # where it runs; of a transfer: destination; of a gradient: source
    code: int  # distinguishes tasks that are otherwise equal
    places: tuple[int, ...]  # numbers of the places it occupies: devices first, then channels
    duration_ns: int
    num_bytes: int = 0  # sent by all members together
    memory_device: int = 0
    memory_bytes: int = 0

    @property
    def identity(self) -> Identity:
        return self.rank, self.tile, self.device, self.code


@dataclass(frozen=True)
class TaskRanks:
    """Topological ranks of tasks by kind and owner: the same for every partition."""

    operators: int  # number of operators of all learners
    groups: int  # number of weight groups of all learners

    def of(self, kind: TaskKind, owner: int) -> int:
        if kind <= TaskKind.TRANSFER:
            return 3 * owner + kind
        if kind <= TaskKind.BACKWARD_SUM:
            return 3 * (2 * self.operators - 1 - owner) + kind - TaskKind.GRADIENT
        if kind <= TaskKind.UPDATE:
            return 6 * self.operators + 3 * owner + kind - TaskKind.GATHER
        return 6 * self.operators + 3 * self.groups

    def operator(self, rank: int) -> int | None:
        """Return the operator whose tasks have a rank; None: they belong to no operator."""
        if rank < 3 * self.operators:
            return rank // 3
        return 2 * self.operators - 1 - rank // 3 if rank < 6 * self.operators else None

    def group(self, rank: int) -> int | None:
        """Return the weight group whose tasks have a rank; None: they belong to no group."""
        number = (rank - 6 * self.operators) // 3
        return number if 0 <= number < self.groups else None


def code_of(numbers: Iterable[int]) -> int:
    """Hash numbers to 64 bits: a part of a tensor, or the members of a sum."""
    code = _START
    for number in numbers:
        code = (code ^ number) * _FACTOR & _MASK
        code ^= code >> 29
    return code


@dataclass(frozen=True)
class Collective:
    """An all-reduce over some devices."""

    # In a ring each device sends 1/n of the bytes 2 (n - 1) times; in a tree all bytes go up and down once. The faster
    # one is used. Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.

    members: int
    channels: tuple[int, ...]  # occupied: all between neighbours in the ring
    latency_ns: int  # the largest between neighbours
    ns_per_byte: float  # maximum over channels, times the number of neighbour pairs that share one
    fixed_ns: int = 0  # fixed time of a sum in addition to its messages

    @classmethod
    def over(cls, topology: DeviceTopology, devices: Sequence[int]) -> "Collective":
        """Return the sum over some devices, in a ring ordered by device number."""
        ring = sorted(devices)
        routes = [topology.route(a, b) for a, b in itertools.pairwise([*ring, ring[0]])]
        uses = Counter(channel for route in routes for channel in route)
        return cls(
            members=len(ring),
            channels=tuple(sorted(uses)),
            latency_ns=max(sum(topology.channels[channel].latency_ns for channel in route) for route in routes),
            ns_per_byte=max(count * topology.channels[channel].ns_per_byte for channel, count in uses.items()),
            fixed_ns=round(topology.sum_us * NS_PER_US),
        )

    def time_ns(self, num_bytes: int) -> int:
        steps = 2 * (self.members - 1)
        ring = steps * self.latency_ns + math.ceil(steps / self.members * num_bytes * self.ns_per_byte)
        hops = 2 * math.ceil(math.log2(self.members))
        return self.fixed_ns + min(ring, hops * self.latency_ns + math.ceil(2 * num_bytes * self.ns_per_byte))

    def moved_bytes(self, num_bytes: int) -> int:
        return 2 * (self.members - 1) * num_bytes


WeightPart: TypeAlias = tuple[Box, ...]  # a box of each of a group's weights


@dataclass(frozen=True)
class WeightGroup:
    """Weights read by the same operators, usually a layer's; their gradients are reduced together."""

    name: str  # of the layer of the first reader; used in task names
    weights: tuple[str, ...]
    readers: tuple[int, ...]
    trainable: bool  # else they only occupy memory


def weight_groups(graph: OperatorGraph) -> tuple[WeightGroup, ...]:
    """Group a graph's weights by their readers, in the order in which they are first read."""
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
    """Return the bytes of a group's weights by the set of devices that hold them."""
    # The borders of all boxes cut a weight into cells; the gradients of a cell are summed over the devices that hold
    # it.
    shared: dict[tuple[int, ...], int] = defaultdict(int)
    for number, name in enumerate(group.weights):
        holders: dict[Box, set[int]] = defaultdict(set)
        for part, devices in holdings.items():
            holders[part[number]].update(devices)
        for cell in common_refinement(list(holders)):
            members = {device for box, those in holders.items() if contains(box, cell) for device in those}
            shared[tuple(sorted(members))] += volume(cell) * graph.weights[name].itemsize
    return dict(shared)


def bytes_by_device(shared: Mapping[tuple[int, ...], int]) -> dict[int, int]:
    """Return the bytes that each device holds, given those that sets of devices share."""
    held = Counter[int]()
    for members, num_bytes in shared.items():
        held.update(dict.fromkeys(members, num_bytes))
    return dict(sorted(held.items()))


GRADIENT_COPIES = 1.0  # gradients of weights take as much memory as the weights
AVERAGING_COPIES = 5.0
"""Additional model copies with averaging: correction, central model, its next and last value, their sum."""


class StepModel:
    """A training step, independent of where its operators run."""

    def __init__(
        self,
        graph: OperatorGraph,
        rules: Rules,
        topology: DeviceTopology,
        costs: Costs,
        *,
        learners: int = 1,
        optimizer_bytes_per_weight_byte: float = 1.0,
    ) -> None:
        self.graph, self.rules, self.topology = graph, rules, topology
        self.learners = learners
        self.device_groups = topology.groups(learners)
        averaging = AVERAGING_COPIES if learners > 1 else 0.0
        self.bytes_per_weight_byte = 1.0 + GRADIENT_COPIES + optimizer_bytes_per_weight_byte + averaging
        """Permanent memory per byte of trainable weights."""
        self.tilings = Tilings(graph, rules)
        self.costs = TaskCosts(costs, topology, self.tilings.signature_ids)
        self.weight_groups = weight_groups(graph)
        self.ranks = TaskRanks(learners * len(graph.operators), learners * len(self.weight_groups))
        self._collectives: dict[tuple[int, ...], Collective] = {}

    @cached_property
    def has_backward(self) -> tuple[bool, ...]:
        """By operator: whether it has trainable weights, or an input that depends on some."""
        found, makers = list[bool](), self.graph.makers
        for operator in self.graph.operators:
            trains = any(self.graph.weights[name].differentiable for name in operator.weights)
            made = (tensor for tensor in operator.inputs if self.graph.tensors[tensor].differentiable)
            found.append(trains or any(found[makers[tensor][0]] for tensor in made if tensor in makers))
        return tuple(found)

    @cached_property
    def groups_read(self) -> tuple[list[int], ...]:
        """By operator: numbers of the weight groups it reads."""
        found: tuple[list[int], ...] = tuple([] for _ in self.graph.operators)
        for number, group in enumerate(self.weight_groups):
            for reader in group.readers:
                found[reader].append(number)
        return found

    def has_gradient(self, tensor: int) -> bool:
        """Return whether a gradient flows back through an operator's output."""
        return self.graph.tensors[tensor].differentiable and self.has_backward[self.graph.makers[tensor][0]]

    def transfer_places(self, source: int, target: int) -> tuple[int, ...]:
        ends = () if self.topology.overlap else tuple(sorted((source, target)))
        return (*ends, *self.places(self.topology.route(source, target)))

    def collective(self, devices: tuple[int, ...]) -> Collective:
        """Return the sum over some devices, passed in ascending order."""
        if devices not in self._collectives:
            self._collectives[devices] = Collective.over(self.topology, devices)
        return self._collectives[devices]

    def collective_places(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        return (*(() if self.topology.overlap else devices), *self.places(self.collective(devices).channels))

    def places(self, channels: tuple[int, ...]) -> tuple[int, ...]:
        """Convert channel numbers to place numbers, which follow those of the devices."""
        return tuple(self.topology.num_devices + channel for channel in channels)

    def place_name(self, place: int) -> str:
        devices = self.topology.devices
        return devices[place].name if place < len(devices) else self.topology.channels[place - len(devices)].name
