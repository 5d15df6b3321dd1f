"""Reference simulator in Python: the task graph of a partition, from scratch; the oracle of the compiled one."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bow.planning.problem.box import Box, intersection, volume
from bow.planning.problem.device_topology import GIB, DeviceTopology
from bow.planning.problem.partition import Partition, Split, Tiling
from bow.planning.simulator.step_model import (
    Identity,
    StepModel,
    Task,
    TaskKind,
    WeightPart,
    bytes_by_device,
    code_of,
    replica_bytes,
)
from bow.schedule import Span, Timeline
from bow.schedule.scheduler.protocol import ReadyOperators, followers


@dataclass(frozen=True)
class TaskGraph:
    """Tasks and their dependencies."""

    # * Per tile: a forward and, if gradients flow, a backward task; tasks without duration occupy no place.
    # * Per part of a tensor read on another device: a transfer over the route's channels and, if gradients flow, one
    #   back; tiles on the same device share both. The batch is on all devices; accumulating gradients costs nothing.
    # * Per sum inside an operator: a forward and a backward task; the tiles' outputs leave after it.
    # * Per weight group: a reduction for each set of devices that hold the same part, an update for each device.
    # * With several learners: per device an averaging of its weights, which starts with the step and overlaps it.

    tasks: tuple[Task, ...]
    predecessors: tuple[tuple[int, ...], ...]  # by task: positions of the tasks it waits for
    weight_bytes: tuple[int, ...]  # by device: trainable weights
    frozen_bytes: tuple[int, ...]  # by device: frozen weights

    @classmethod
    def of(cls, model: StepModel, partition: Partition) -> TaskGraph:
        builder = _TaskGraphBuilder(model)
        for learner, devices in enumerate(model.device_groups):
            builder.add_learner(learner, devices, partition.splits)
        builder.add_averaging()
        return cls(
            tuple(builder.tasks),
            tuple(tuple(dict.fromkeys(before)) for before in builder.predecessors),
            tuple(builder.weight_bytes),
            tuple(builder.frozen_bytes),
        )


@dataclass
class _OperatorTasks:
    """Tasks of an operator. Without an internal sum, outputs leave with the tiles' own tasks."""

    tiling: Tiling
    devices: tuple[int, ...]
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    output_ready: list[int] = field(default_factory=list)  # by tile: task after which its outputs can leave
    input_gradient_ready: list[int] = field(default_factory=list)  # the same for the gradients of its inputs


class _TaskGraphBuilder:
    def __init__(self, model: StepModel) -> None:
        self.model, self.graph = model, model.graph
        self.tasks: list[Task] = []
        self.predecessors: list[list[int]] = []
        self.weight_bytes = [0] * model.topology.num_devices
        self.frozen_bytes = [0] * model.topology.num_devices

    def add_learner(self, learner: int, devices: Sequence[int], splits: Sequence[Split]) -> None:
        first = learner * len(splits)
        placed: list[_OperatorTasks] = []
        for index, split in enumerate(splits):
            tiling = self.model.tilings.of(index, split.degrees)
            placed.append(_OperatorTasks(tiling, tuple(devices[device] for device in split.devices)))
            self._add_tiles(first, index, placed[-1])
        readers = defaultdict[int, list[tuple[_OperatorTasks, Sequence[Box | None]]]](list)
        for operator, of in zip(self.graph.operators, placed, strict=True):
            for slot, tensor in enumerate(operator.inputs):
                readers[tensor].append((of, of.tiling.inputs[slot]))
        for tensor, (maker, slot) in self.graph.makers.items():
            self._add_moves(tensor, first + maker, slot, placed[maker], readers[tensor])
        for number in range(len(self.model.weight_groups)):
            self._add_group(learner, number, placed)

    def add_averaging(self) -> None:
        if self.model.learners == 1:
            return
        for members in zip(*self.model.device_groups, strict=True):
            num_bytes = self.weight_bytes[members[0]]
            if num_bytes:
                self._add_sum(TaskKind.AVERAGING, 0, members[0], members, num_bytes, [])

    def _add_tiles(self, first: int, index: int, placed: _OperatorTasks) -> None:
        tiling, owner = placed.tiling, first + index
        forward_ns, backward_ns = self.model.costs.of_tiles(index, tiling, placed.devices)
        gradient_bytes = tiling.gradient_bytes if self.model.has_backward[index] else [0] * tiling.num_tiles
        for tile, device in enumerate(placed.devices):
            placed.forward.append(
                self._add_tile(TaskKind.FORWARD, owner, tile, device, int(forward_ns[tile]), tiling.output_bytes[tile])
            )
        placed.output_ready = self._add_sums(TaskKind.FORWARD_SUM, owner, placed, placed.forward)
        if not self.model.has_backward[index]:
            return
        for tile, device in enumerate(placed.devices):
            task = self._add_tile(TaskKind.BACKWARD, owner, tile, device, int(backward_ns[tile]), gradient_bytes[tile])
            self.predecessors[task].append(placed.forward[tile])
            placed.backward.append(task)
        placed.input_gradient_ready = self._add_sums(TaskKind.BACKWARD_SUM, owner, placed, placed.backward)

    def _add_sums(self, kind: TaskKind, owner: int, placed: _OperatorTasks, tiles: list[int]) -> list[int]:
        """Add an operator's internal sums; return by tile its sum, or the tile's own task if there is none."""
        made = list(tiles)
        for number, num_bytes, members, devices in placed.tiling.sums_over(placed.devices):
            task = self._add_sum(kind, owner, number, devices, num_bytes, [tiles[tile] for tile in members])
            for tile in members:
                made[tile] = task
        return made

    def _add_moves(
        self,
        tensor: int,
        maker: int,
        slot: int,
        made: _OperatorTasks,
        readers: list[tuple[_OperatorTasks, Sequence[Box | None]]],
    ) -> None:
        """Add the dependencies and transfers of a tensor from its maker to its readers, and of its gradient back."""
        moves: dict[tuple[int, Box, int], tuple[int, int | None]] = {}
        flows, itemsize = self.model.has_gradient(tensor), self.graph.tensors[tensor].itemsize
        for reader, boxes in readers:
            for tile, (box, device) in enumerate(zip(boxes, reader.devices, strict=True)):
                for source, output in enumerate(made.tiling.outputs[slot]):
                    part = None if box is None else intersection(box, output)
                    if part is None:
                        continue
                    if made.devices[source] == device:
                        self.predecessors[reader.forward[tile]].append(made.output_ready[source])
                        if flows:
                            self.predecessors[made.backward[source]].append(reader.input_gradient_ready[tile])
                        continue
                    key = source, part, device
                    if key not in moves:
                        code = code_of((slot, *(end for side in part for end in side)))
                        num_bytes = volume(part) * itemsize
                        moves[key] = self._add_move(maker, source, made, device, code, num_bytes, flows)
                    there, back = moves[key]
                    self.predecessors[reader.forward[tile]].append(there)
                    if back is not None:
                        self.predecessors[back].append(reader.input_gradient_ready[tile])

    def _add_move(
        self, maker: int, source: int, made: _OperatorTasks, device: int, code: int, num_bytes: int, flows: bool
    ) -> tuple[int, int | None]:
        home = made.devices[source]
        there = self._add_transfer(TaskKind.TRANSFER, maker, source, home, device, code, num_bytes)
        self.predecessors[there].append(made.output_ready[source])
        if not flows:
            return there, None
        back = self._add_transfer(TaskKind.GRADIENT, maker, source, device, home, code, num_bytes)
        self.predecessors[made.backward[source]].append(back)
        return there, back

    def _add_group(self, learner: int, number: int, placed: list[_OperatorTasks]) -> None:
        group = self.model.weight_groups[number]
        holdings: dict[WeightPart, set[int]] = defaultdict(set)
        backward: dict[int, list[int]] = defaultdict(list)
        for index in group.readers:
            names, of = self.graph.operators[index].weights, placed[index]
            for tile, device in enumerate(of.devices):
                holdings[tuple(of.tiling.weights[tile][names.index(name)] for name in group.weights)].add(device)
                if group.trainable:
                    backward[device].append(of.backward[tile])
        shared = replica_bytes(self.graph, group, holdings)
        of_device = bytes_by_device(shared)
        for device, num_bytes in of_device.items():
            (self.weight_bytes if group.trainable else self.frozen_bytes)[device] += num_bytes
        if group.trainable:
            owner = learner * len(self.model.weight_groups) + number
            self._add_reductions(owner, shared, of_device, backward)

    def _add_reductions(
        self,
        owner: int,
        shared: dict[tuple[int, ...], int],
        of_device: dict[int, int],
        backward: dict[int, list[int]],
    ) -> None:
        gathers = {device: self._add_tile(TaskKind.GATHER, owner, 0, device, 0) for device in of_device}
        updates: dict[int, int] = {}
        for device, num_bytes in of_device.items():
            self.predecessors[gathers[device]] += backward[device]
            duration_ns = self.model.costs.update_ns(num_bytes, device)
            updates[device] = self._add_tile(TaskKind.UPDATE, owner, 0, device, duration_ns)
            self.predecessors[updates[device]].append(gathers[device])
        for members, num_bytes in shared.items():
            if len(members) > 1:
                before = [gathers[device] for device in members]
                reduction = self._add_sum(TaskKind.REDUCTION, owner, 0, members, num_bytes, before)
                for device in members:
                    self.predecessors[updates[device]].append(reduction)

    def _add_tile(
        self, kind: TaskKind, owner: int, tile: int, device: int, duration_ns: int, memory_bytes: int = 0
    ) -> int:
        places = (device,) if duration_ns else ()
        return self._add([], kind, owner, tile, device, 0, places, duration_ns, 0, device, memory_bytes)

    def _add_transfer(
        self, kind: TaskKind, owner: int, tile: int, source: int, target: int, code: int, num_bytes: int
    ) -> int:
        away = target if kind is TaskKind.TRANSFER else source
        places = self.model.transfer_places(source, target)
        duration_ns = self.model.topology.transfer_ns(num_bytes, source, target)
        return self._add([], kind, owner, tile, away, code, places, duration_ns, num_bytes, away, num_bytes)

    def _add_sum(
        self, kind: TaskKind, owner: int, number: int, devices: tuple[int, ...], num_bytes: int, before: list[int]
    ) -> int:
        """Add a sum over devices, identified by its number within the operator, or else by its members."""
        collective, places = self.model.collective(devices), self.model.collective_places(devices)
        time_ns, moved_bytes = collective.time_ns(num_bytes), collective.moved_bytes(num_bytes)
        return self._add(before, kind, owner, number, 0, code_of(devices), places, time_ns, moved_bytes)

    def _add(self, before: list[int], kind: TaskKind, owner: int, *others: Any) -> int:
        """Add a task; `others` are the fields after `rank`."""
        self.tasks.append(Task(kind, owner, self.model.ranks.of(kind, owner), *others))
        self.predecessors.append(before)
        return len(self.tasks) - 1


@dataclass(frozen=True)
class TaskTime:
    """Times of a task, in nanoseconds since the step began."""

    ready_ns: int  # when all predecessors had ended
    start_ns: int  # when all places it occupies were free as well
    end_ns: int


def simulate_tasks(graph: TaskGraph) -> list[TaskTime]:
    """Simulate all tasks in the order in which they become ready."""
    # Tasks leave one queue by (ready time, identity): predecessors leave before their successors, and this is also the
    # order in which every place runs its tasks.
    progress = ReadyOperators(graph.predecessors)
    free_ns: dict[int, int] = {}
    times: dict[int, TaskTime] = {}
    queue = [(0, graph.tasks[number].identity, number) for number in progress.begin()]
    heapq.heapify(queue)
    while queue:
        ready, _, number = heapq.heappop(queue)
        task = graph.tasks[number]
        start = max([ready, *(free_ns.get(place, 0) for place in task.places)])
        end = start + task.duration_ns
        times[number] = TaskTime(ready, start, end)
        free_ns.update(dict.fromkeys(task.places, end))
        for later in progress.finish(number):
            ready = max(times[before].end_ns for before in graph.predecessors[later])
            heapq.heappush(queue, (ready, graph.tasks[later].identity, later))
    assert progress.done, "tasks wait for each other"
    return [times[number] for number in range(len(graph.tasks))]


def simulate_passing(graph: TaskGraph) -> list[TaskTime]:
    """Simulate all tasks; a task that can start passes earlier ones that wait for another place."""
    # Whenever tasks end, ready tasks are examined by (ready time, identity), and start if their places are free.
    progress = ReadyOperators(graph.predecessors)
    times: dict[int, TaskTime] = {}
    waiting: list[tuple[int, Identity, int]] = []
    ends: list[tuple[int, int]] = []
    busy: set[int] = set()

    def end(number: int, now: int) -> None:
        busy.difference_update(graph.tasks[number].places)
        for later in progress.finish(number):
            arrive(later, now)

    def arrive(number: int, now: int) -> None:
        task = graph.tasks[number]
        if task.places:
            bisect.insort(waiting, (now, task.identity, number))
        else:
            times[number] = TaskTime(now, now, now)
            end(number, now)

    now = 0
    for number in progress.begin():
        arrive(number, now)
    while waiting or ends:
        left = []
        for ready, identity, number in waiting:
            task = graph.tasks[number]
            if busy.isdisjoint(task.places):
                busy.update(task.places)
                times[number] = TaskTime(ready, now, now + task.duration_ns)
                heapq.heappush(ends, (now + task.duration_ns, number))
            else:
                left.append((ready, identity, number))
        waiting[:] = left
        now = ends[0][0]
        while ends and ends[0][0] == now:
            end(heapq.heappop(ends)[1], now)
    return [times[number] for number in range(len(graph.tasks))]


@dataclass(frozen=True)
class Refusal:
    """Why a partition does not fit: the first device whose memory is too small."""

    device: int
    name: str
    needed_bytes: int  # peak
    available_bytes: int

    @classmethod
    def of(cls, topology: DeviceTopology, device: int, needed_bytes: int) -> Refusal:
        return cls(device, topology.devices[device].name, needed_bytes, topology.memory_bytes(device))

    def __str__(self) -> str:
        needed, available = self.needed_bytes / GIB, self.available_bytes / GIB
        return f"{self.name} (device {self.device}) needs {needed:.2f} GiB of memory and has {available:.2f} GiB"


def memory_peaks(model: StepModel, graph: TaskGraph, times: Sequence[TaskTime]) -> tuple[int, ...]:
    # * Permanently: weights, their gradients, the optimizer's state, copies for averaging; frozen weights once.
    # * Outputs of a tile: from its forward pass to the end of its backward pass; without one, to the end of the
    #   backward (or else forward) passes that read them on the device, and of the transfers that send them.
    # * Parts received from another device: from the start of the transfer to the end of the last pass that reads them.
    # * Gradients of a tile's outputs: from the first task that contributes to them to the end of the backward pass.
    # * Gradients sent to another device: from the first task that contributes to them to their arrival.
    # Views share memory. Workspaces and the allocator's waste are not counted.
    always = [
        round(model.bytes_per_weight_byte * trained) + frozen
        for trained, frozen in zip(graph.weight_bytes, graph.frozen_bytes, strict=True)
    ]
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for task, (start, end) in zip(graph.tasks, _lifetimes(graph, times), strict=True):
        if task.memory_bytes and end > start:
            changes[task.memory_device] += [(start, task.memory_bytes), (end, -task.memory_bytes)]
    # Sorted: memory freed at a time is available to allocations at the same time.
    return tuple(
        max(itertools.accumulate((change for _, change in sorted(changes[device])), initial=num_bytes))
        for device, num_bytes in enumerate(always)
    )


def _lifetimes(graph: TaskGraph, times: Sequence[TaskTime]) -> Iterator[tuple[int, int]]:
    after = followers(graph.predecessors)
    backward = {
        (task.owner, task.tile): number for number, task in enumerate(graph.tasks) if task.kind is TaskKind.BACKWARD
    }

    def read_until(number: int) -> int:
        """Return when a task no longer needs what it read or made."""
        task = graph.tasks[number]
        last = backward.get((task.owner, task.tile), number) if task.kind is TaskKind.FORWARD else number
        return times[last].end_ns

    def readers(number: int) -> Iterator[int]:
        for later in after[number]:
            if graph.tasks[later].kind is TaskKind.FORWARD_SUM:
                yield from readers(later)
            elif graph.tasks[later].kind in (TaskKind.FORWARD, TaskKind.TRANSFER):
                yield later

    for number, task in enumerate(graph.tasks):
        end = times[number].end_ns
        if task.kind in (TaskKind.FORWARD, TaskKind.TRANSFER):
            end = max([read_until(number), *map(read_until, readers(number))])
        yield _beginning(graph, times, number), end


def _beginning(graph: TaskGraph, times: Sequence[TaskTime], number: int) -> int:
    """Return when a result begins to take memory: gradients with the first contribution to them."""
    task = graph.tasks[number]
    before = graph.predecessors[number] if task.kind in (TaskKind.GRADIENT, TaskKind.BACKWARD) else ()
    contributions = (earlier for earlier in before if graph.tasks[earlier].kind is not TaskKind.FORWARD)
    return min([times[number].start_ns, *(times[earlier].start_ns for earlier in contributions)])


COMPUTING = frozenset({TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.UPDATE})  # tasks that occupy a device's compute


@dataclass(frozen=True)
class SimulationResult:
    """Simulation of a step under a partition."""

    model: StepModel
    tasks: tuple[Task, ...]
    times: tuple[TaskTime, ...]
    peaks: tuple[int, ...]  # peak memory by device, in bytes

    @property
    def makespan_ns(self) -> int:
        return max((time.end_ns for time in self.times), default=0)

    @cached_property
    def refusal(self) -> Refusal | None:
        topology = self.model.topology
        found = (Refusal.of(topology, device, num_bytes) for device, num_bytes in enumerate(self.peaks))
        return next((each for each in found if each.needed_bytes > each.available_bytes), None)

    @property
    def communication_bytes(self) -> int:
        return sum(task.num_bytes for task in self.tasks)

    @property
    def task_ns(self) -> int:
        """Total time of all computing tasks."""
        return sum(task.duration_ns for task in self.tasks if task.kind in COMPUTING)

    @cached_property
    def timeline(self) -> Timeline:
        spans = []
        for task, time in zip(self.tasks, self.times, strict=True):
            name, kind = task_name(self.model, task), task.kind.name.lower()
            details = {"tile": task.tile, "bytes": task.num_bytes, "ready_ns": time.ready_ns}
            places = map(self.model.place_name, task.places if task.duration_ns else ())
            spans += [Span(name, place, time.start_ns, time.end_ns, kind, details) for place in places]
        return Timeline(spans)


def simulate(model: StepModel, partition: Partition) -> SimulationResult:
    tasks = TaskGraph.of(model, partition)
    times = (simulate_passing if model.topology.passing else simulate_tasks)(tasks)
    return SimulationResult(model, tasks.tasks, tuple(times), memory_peaks(model, tasks, times))


def task_name(model: StepModel, task: Task) -> str:
    """Return a task's name, such as `forward conv1` or `reduction fc`."""
    what = task.kind.name.lower().replace("_", " ")
    if task.kind is TaskKind.AVERAGING:
        return what
    if task.kind >= TaskKind.GATHER:
        return f"{what} {model.weight_groups[task.owner % len(model.weight_groups)].name}"
    return f"{what} {model.graph.operators[task.owner % len(model.graph.operators)].name}"
