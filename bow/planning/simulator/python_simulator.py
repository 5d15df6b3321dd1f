"""Reference simulator in Python: always from scratch, slow, needs no compiler; the oracle of the compiled one."""

import bisect
import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from bow.planning.problem.device_topology import GIB, DeviceTopology
from bow.planning.problem.partition import Partition
from bow.planning.simulator.step_model import Identity, StepModel, Task, TaskKind
from bow.planning.simulator.task_graph import TaskGraph
from bow.schedule import Span, Timeline


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
    missing = [len(before) for before in graph.predecessors]
    after = successors(graph)
    ready_ns = [0] * len(graph.tasks)
    free_ns: dict[int, int] = {}
    times: list[TaskTime | None] = [None] * len(graph.tasks)
    queue: list[tuple[int, Identity, int]] = [
        (0, task.identity, number) for number, task in enumerate(graph.tasks) if not missing[number]
    ]
    heapq.heapify(queue)
    while queue:
        ready, _, number = heapq.heappop(queue)
        task = graph.tasks[number]
        start = max([ready, *(free_ns.get(place, 0) for place in task.places)])
        end = start + task.duration_ns
        times[number] = TaskTime(ready, start, end)
        free_ns.update(dict.fromkeys(task.places, end))
        for later in after[number]:
            ready_ns[later] = max(ready_ns[later], end)
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(queue, (ready_ns[later], graph.tasks[later].identity, later))
    done = [time for time in times if time is not None]
    assert len(done) == len(times), "tasks wait for each other"
    return done


def simulate_passing(graph: TaskGraph) -> list[TaskTime]:
    """Simulate all tasks; a task that can start passes earlier ones that wait for another place."""
    # Whenever tasks end, ready tasks are examined by (ready time, identity), and start if their places are free.
    missing, after = [len(before) for before in graph.predecessors], successors(graph)
    times: dict[int, TaskTime] = {}
    waiting: list[tuple[int, Identity, int]] = []
    ends: list[tuple[int, int]] = []
    busy: set[int] = set()

    def end(number: int, now: int) -> None:
        busy.difference_update(graph.tasks[number].places)
        for later in after[number]:
            missing[later] -= 1
            if not missing[later]:
                arrive(later, now)

    def arrive(number: int, now: int) -> None:
        task = graph.tasks[number]
        if task.places:
            bisect.insort(waiting, (now, task.identity, number))
        else:
            times[number] = TaskTime(now, now, now)
            end(number, now)

    now = 0
    for number in [number for number, count in enumerate(missing) if not count]:
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


def successors(graph: TaskGraph) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in graph.tasks]
    for number, before in enumerate(graph.predecessors):
        for earlier in before:
            after[earlier].append(number)
    return after


@dataclass(frozen=True)
class Refusal:
    """Why a partition does not fit: the first device whose memory is too small."""

    device: int
    name: str
    needed_bytes: int  # peak
    available_bytes: int

    @classmethod
    def of(cls, topology: DeviceTopology, device: int, needed_bytes: int) -> "Refusal":
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
    """By task: lifetime of its result."""
    after = successors(graph)
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
        """Why the partition does not fit into the devices' memory; None: it fits."""
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
        return Timeline(self._spans())

    def _spans(self) -> Iterator[Span]:
        for task, time in zip(self.tasks, self.times, strict=True):
            name = task_name(self.model, task)
            details = {"tile": task.tile, "bytes": task.num_bytes, "ready_ns": time.ready_ns}
            for place in task.places if task.duration_ns else ():
                where = self.model.place_name(place)
                yield Span(name, where, time.start_ns, time.end_ns, task.kind.name.lower(), details)


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
