"""Tables of times between tiles and of device and channel loads, over all pairs of splits of two operators."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.box import Box
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.simulator.step_model import StepModel, WeightGroup, bytes_by_device, replica_bytes


@dataclass(frozen=True)
class Edge:
    """A tensor passed from one operator to another."""

    maker: int  # position of the producing operator
    output: int  # index of its output
    reader: int  # position of the consuming operator
    input: int  # index of its input
    itemsize: int
    is_differentiable: bool


def edges_of(graph: OperatorGraph) -> Iterator[Edge]:
    """Yield all tensors between operators, ordered by reader; one that an operator reads twice is yielded twice."""
    for reader, operator in enumerate(graph.operators):
        for place, tensor in enumerate(operator.inputs):
            if tensor in graph.makers:
                (maker, output), shape = graph.makers[tensor], graph.tensors[tensor]
                yield Edge(maker, output, reader, place, shape.itemsize, shape.differentiable)


def overlaps(made: Sequence[Box], read: Sequence[Box | None]) -> NDArray[np.int64]:
    """Number of elements in the intersection of each pair of boxes, [made, read]."""
    if not made or not made[0]:  # scalars: whole, or not read at all
        return np.array([[int(box is not None) for box in read] for _ in made], np.int64).reshape(len(made), len(read))
    nothing = tuple((0, 0) for _ in made[0])
    one = np.array(made, np.int64)[:, None]
    other = np.array([nothing if box is None else box for box in read], np.int64)[None]
    sides = np.minimum(one[..., 1], other[..., 1]) - np.maximum(one[..., 0], other[..., 0])
    common: NDArray[np.int64] = np.maximum(sides, 0).prod(axis=-1)
    return common


class TransferTimes:
    """Times of transfers between devices, without contention."""

    def __init__(self, topology: DeviceTopology) -> None:
        devices = range(topology.num_devices)
        routes = [[[topology.channels[number] for number in topology.route(a, b)] for b in devices] for a in devices]
        self._latency = np.array([[sum(each.latency_ns for each in route) for route in row] for row in routes])
        slowest = [[max((each.ns_per_byte for each in route), default=0.0) for route in row] for row in routes]
        self._ns_per_byte = np.array(slowest)

    def of(
        self, num_bytes: NDArray[np.int64], senders: NDArray[np.int64], receivers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return nanoseconds, rounded down; 0 for no bytes, and within a device."""
        time = self._latency[senders, receivers] + np.floor(num_bytes * self._ns_per_byte[senders, receivers])
        times: NDArray[np.int64] = np.where(num_bytes > 0, time, 0).astype(np.int64)
        return times


@dataclass(frozen=True)
class GroupTimes:
    """Times of the reductions and updates of a weight group."""

    reductions_ns: Mapping[tuple[int, ...], int]  # all-reduce, by the devices that hold the same part
    updates_ns: Mapping[int, int]  # by device that holds a part

    def remaining_ns(self, device: int) -> int:
        """Return the least time from when a device has its gradients until all dependent updates are done."""
        waiting = [
            time + max(self.updates_ns[member] for member in members)
            for members, time in self.reductions_ns.items()
            if device in members
        ]
        return max([self.updates_ns.get(device, 0), *waiting])


def group_times(model: StepModel, group: WeightGroup, reader: int, split: Split) -> GroupTimes:
    """Return the times of reductions and updates, as if only one operator read the weights."""
    if not group.trainable:
        return GroupTimes({}, {})
    names = model.graph.operators[reader].weights
    places = [names.index(name) for name in group.weights]
    holdings: dict[tuple[Box, ...], list[int]] = defaultdict(list)
    for boxes, device in zip(model.tilings.of(reader, split.degrees).weights, split.devices, strict=True):
        holdings[tuple(boxes[place] for place in places)].append(device)
    shared = replica_bytes(model.graph, group, holdings)
    return GroupTimes(
        {
            members: model.collective(members).time_ns(num_bytes)
            for members, num_bytes in shared.items()
            if len(members) > 1
        },
        {device: model.costs.update_ns(num_bytes, device) for device, num_bytes in bytes_by_device(shared).items()},
    )


Array: TypeAlias = NDArray[np.int64]

NEG_INF = -(2**50)  # minus infinity: time of an event that does not happen; sums of a few stay far below any time
POS_INF = 2**50  # plus infinity, for minima


class TileTables:
    """Times in nanoseconds by split and tile; each table is as wide as its operator's largest number of tiles."""

    def __init__(
        self, model: StepModel, options: Sequence[Sequence[Split]], check: Callable[[], None] = lambda: None
    ) -> None:
        self._model, self._options, self._check = model, options, check
        self.transfers = TransferTimes(model.topology)
        operators = range(len(options))
        # by operator: [split, tile], device (-1: no such tile), time of the forward and the backward pass
        tables = [self._tile_tables(operator) for operator in operators]
        self.devices, self.forward, self.backward = map(list, zip(*tables, strict=True))
        # by operator: [split, tile, tile], the sum that a tile waits for with another one before its output leaves;
        # None: the operator has no sums
        self.sums = [self._sum_table(operator) for operator in operators]
        # by operator: [split, tile], least time of reductions and updates after the tile's backward pass
        self.updates = [np.zeros_like(table) for table in self.forward]
        self._add_updates()
        self.edges: list[list[Edge]] = [[] for _ in operators]  # by operator: tensors it reads from others
        for edge in edges_of(model.graph):
            self.edges[edge.reader].append(edge)
        # by operator and edge: [split of the maker, split of the reader, tile, tile], time of the transfer
        self.transfer_ns = [[self._transfer_table(edge, is_back=False) for edge in edges] for edges in self.edges]
        # the same for the gradient
        self.gradient_ns = [[self._transfer_table(edge, is_back=True) for edge in edges] for edges in self.edges]

    def _tile_tables(self, operator: int) -> tuple[Array, Array, Array]:
        self._check()
        splits = self._options[operator]
        shape = len(splits), max(split.num_tiles for split in splits)
        devices, forward, backward = (np.full(shape, value, np.int64) for value in (-1, NEG_INF, 0))
        for option, split in enumerate(splits):
            tiling, own = self._model.tilings.of(operator, split.degrees), slice(split.num_tiles)
            devices[option, own] = split.devices
            forward[option, own], back = self._model.costs.of_tiles(operator, tiling, split.devices)
            if self._model.has_backward[operator]:
                backward[option, own] = back
        return devices, forward, backward

    def _sum_table(self, operator: int) -> Array | None:
        described = self._model.graph.operators[operator]
        if not self._model.rules.of(described).sums(described):
            return None
        options, width = self.devices[operator].shape
        table = np.full((options, width, width), NEG_INF, np.int64)
        table[:, range(width), range(width)] = 0
        for option, split in enumerate(self._options[operator]):
            tiling = self._model.tilings.of(operator, split.degrees)
            for _, num_bytes, members, devices in tiling.sums_over(split.devices):
                table[option][np.ix_(members, members)] = self._model.collective(devices).time_ns(num_bytes)
        return table

    def _add_updates(self) -> None:
        """Bound weights with several readers by the update of one reader's part, without reductions."""
        for group in self._model.weight_groups:
            is_only = len(group.readers) == 1
            for reader in group.readers:
                self._check()
                for option, split in enumerate(self._options[reader]):
                    times = group_times(self._model, group, reader, split)
                    behind = [
                        times.remaining_ns(each) if is_only else times.updates_ns.get(each, 0) for each in split.devices
                    ]
                    row = self.updates[reader][option, : split.num_tiles]
                    np.maximum(row, behind, out=row)

    def _transfer_table(self, edge: Edge, is_back: bool) -> Array:
        (makers, made), (readers, read) = self.devices[edge.maker].shape, self.devices[edge.reader].shape
        table = np.full((makers, readers, made, read), NEG_INF, np.int64)
        if is_back and not self._model.has_gradient(self._model.graph.operators[edge.maker].outputs[edge.output]):
            return table
        for one in self.splits_by_degrees(edge.maker):
            self._check()
            for other in self.splits_by_degrees(edge.reader):
                num_bytes, home, away = self.between(edge, one, other)
                times = self.transfers.of(num_bytes, *((away, home) if is_back else (home, away)))
                table[np.ix_(one, other, *map(range, num_bytes.shape))] = np.where(num_bytes > 0, times, NEG_INF)
        return table

    def between(self, edge: Edge, one: Sequence[int], other: Sequence[int]) -> tuple[Array, Array, Array]:
        """Return bytes by pair of tiles, and devices of both sides, for splits with the same degrees on each side."""
        degrees = self._options[edge.maker][one[0]].degrees, self._options[edge.reader][other[0]].degrees
        made = self._model.tilings.of(edge.maker, degrees[0]).outputs[edge.output]
        read = self._model.tilings.of(edge.reader, degrees[1]).inputs[edge.input]
        home = self.devices[edge.maker][one, : len(made)][:, None, :, None]
        away = self.devices[edge.reader][other, : len(read)][None, :, None, :]
        return edge.itemsize * overlaps(made, read), home, away

    def splits_by_degrees(self, operator: int) -> list[list[int]]:
        groups: dict[tuple[int, ...], list[int]] = {}
        for option, split in enumerate(self._options[operator]):
            groups.setdefault(split.degrees, []).append(option)
        return list(groups.values())


class PlaceTables:
    """Least work in nanoseconds by place (devices, then channels)."""

    def __init__(
        self,
        model: StepModel,
        options: Sequence[Sequence[Split]],
        tables: TileTables,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._model, self._options, self._tables, self._check = model, options, tables, check
        self.num_places = model.topology.num_devices + len(model.topology.channels)
        operators = range(len(options))
        # by operator: [split, tile, place], the backward pass
        there = [devices[:, :, None] == np.arange(self.num_places) for devices in tables.devices]
        self.passes = [np.where(of, each[:, :, None], 0) for of, each in zip(there, tables.backward, strict=True)]
        groups = [self._group_tables(operator) for operator in operators]
        # by operator: [split, task, place], its reductions and updates; [split, tile, task], whether a reduction or
        # update waits for the tile's backward pass; [split], least time after a reduction
        self.weights, self.leads, self.ends = map(list, zip(*groups, strict=True))
        # by operator: [split, place], forward and backward passes, updates, reductions
        forward = [np.where(of, each[:, :, None], 0) for of, each in zip(there, tables.forward, strict=True)]
        tasks = zip(forward, self.passes, self.weights, strict=True)
        self.loads = [(first + back).sum(axis=1) + weights.sum(axis=1) for first, back, weights in tasks]
        # by operator and edge: [split of the maker, split of the reader, tile], bit set of the maker's tiles whose
        # backward pass waits for the tile's
        reads = [[back > NEG_INF // 2 for back in of] for of in tables.gradient_ns]
        self.sources = [[np.tensordot(each, 1 << np.arange(each.shape[-2]), (-2, 0)) for each in of] for of in reads]
        self._seen: set[tuple[int, int]] = set()
        # by operator and edge: [split of the maker, split of the reader, place], transfers and gradients
        self.edge_loads = [[self._edge_table(edge) for edge in edges] for edges in tables.edges]

    def _group_tables(self, operator: int) -> tuple[Array, NDArray[np.bool_], Array]:
        """Reductions and updates of weights read by this operator only."""
        self._check()
        groups = [group for group in self._model.weight_groups if group.readers == (operator,)]
        found = [
            [task for group in groups for task in self._tasks(group_times(self._model, group, operator, split))]
            for split in self._options[operator]
        ]
        devices = self._tables.devices[operator]
        width = max(map(len, found))
        weights = np.zeros((len(found), width, self.num_places), np.int64)
        leads = np.zeros((*devices.shape, width), np.bool_)
        ends = np.full(len(found), POS_INF, np.int64)
        for option, tasks in enumerate(found):
            for number, task in enumerate(tasks):
                weights[option, number, list(task.places)] = task.duration_ns
                leads[option, :, number] = np.isin(devices[option], list(task.waits_for))
                ends[option] = min(ends[option], task.end_ns)
        return weights, leads, ends

    def _tasks(self, times: GroupTimes) -> Iterator[_WeightTask]:
        for members, time in times.reductions_ns.items():
            end = min(times.updates_ns[member] for member in members)
            yield _WeightTask(self._model.collective_places(members), members, time, end)
        for device, time in times.updates_ns.items():
            waits = {member for members in times.reductions_ns if device in members for member in members}
            yield _WeightTask((device,), (device, *waits), time, POS_INF)

    def _edge_table(self, edge: Edge) -> Array:
        """Readers of a tensor may share its transfers: count only those of the first reader."""
        shape = len(self._options[edge.maker]), len(self._options[edge.reader]), self.num_places
        table = np.zeros(shape, np.int64)
        if (edge.maker, edge.output) not in self._seen:
            self._seen.add((edge.maker, edge.output))
            for one in self._tables.splits_by_degrees(edge.maker):
                self._check()
                for other in self._tables.splits_by_degrees(edge.reader):
                    table[np.ix_(one, other)] = self._between(edge, one, other)
        return table

    def _between(self, edge: Edge, one: Sequence[int], other: Sequence[int]) -> Array:
        """Loads between splits with the same degrees on each side, [split, split, place]."""
        # Tiles on a device may share a transfer: count only the longest from each tile to each device.
        flows = self._model.has_gradient(self._model.graph.operators[edge.maker].outputs[edge.output])
        num_bytes, home, away = self._tables.between(edge, one, other)
        there = self._tables.transfers.of(num_bytes, home, away)
        back = self._tables.transfers.of(num_bytes if flows else np.zeros_like(num_bytes), away, home)
        loads = np.zeros((len(one), len(other), self.num_places), np.int64)
        for source, target in itertools.permutations(range(self._model.topology.num_devices), 2):
            for times, route in ((there, (source, target)), (back, (target, source))):
                longest = np.where(away == target, times, 0).max(axis=3)
                busy = np.where(home[..., 0] == source, longest, 0).sum(axis=2)
                for place in self._model.transfer_places(*route):
                    loads[..., place] += busy
        return loads


@dataclass(frozen=True)
class _WeightTask:
    """A reduction or an update."""

    places: tuple[int, ...]
    waits_for: tuple[int, ...]  # devices whose backward passes it waits for
    duration_ns: int
    end_ns: int  # least time after it
