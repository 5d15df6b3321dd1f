"""How much memory a strategy takes on every device, and when it takes most."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bow.planning.problem.device_topology import GIB, DeviceTopology
from bow.planning.problem.step_model import StepModel
from bow.planning.simulator.full_simulation import TaskTime, successors
from bow.planning.simulator.task_graph import TaskGraph
from bow.planning.simulator.tasks import TaskKind


@dataclass(frozen=True)
class MemoryPeak:
    """The most memory that a device needs at any time.

    Attributes:
        num_bytes: how much.
        at_ns: the first time at which it needs so much.
    """

    num_bytes: int
    at_ns: int


@dataclass(frozen=True)
class Refusal:
    """Why a strategy does not fit: the first device whose memory is too small.

    Attributes:
        device: its number.
        name: its name.
        needed_bytes: the most that it would need at a time.
        available_bytes: what it has.

    Example:
        >>> print(Refusal(1, "gpu1", needed_bytes=9 * 2**30, available_bytes=8 * 2**30))
        gpu1 (device 1) needs 9.00 GiB of memory and has 8.00 GiB
    """

    device: int
    name: str
    needed_bytes: int
    available_bytes: int

    def __str__(self) -> str:
        needed, available = self.needed_bytes / GIB, self.available_bytes / GIB
        return f"{self.name} (device {self.device}) needs {needed:.2f} GiB of memory and has {available:.2f} GiB"


def memory_peaks(model: StepModel, graph: TaskGraph, times: Sequence[TaskTime]) -> tuple[MemoryPeak, ...]:
    """The most memory that every device needs at a time.

    * All the time: weights, gradients of weights, the optimizer's state, and what averaging keeps; weights that are
      not trained only once.
    * What a tile makes: from the start of its forward pass to the end of its backward pass; without one, to the end
      of the backward (or else forward) passes that read it on the device, and of the transfers that take it away.
    * What came from another device: from the start of its transfer to the end of the last backward (or else forward)
      pass that reads it.
    * The gradient of what a tile makes: from the start of the first task that contributes to it to the end of the
      tile's backward pass.
    * A gradient that goes to another device: from the start of the first task that contributes to it to its arrival.

    Views share the memory of what they look at. Workspaces, what operators keep beside their inputs and outputs, and
    what the allocator wastes are not counted.
    """
    always = [
        round(model.copies * trained) + frozen
        for trained, frozen in zip(graph.weight_bytes, graph.frozen_bytes, strict=True)
    ]
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for task, (start, end) in zip(graph.tasks, _lifetimes(graph, times), strict=True):
        if task.memory_bytes and end > start:
            changes[task.memory_device] += [(start, task.memory_bytes), (end, -task.memory_bytes)]
    return tuple(_peak(num_bytes, changes[device]) for device, num_bytes in enumerate(always))


def refusal(topology: DeviceTopology, peaks: Sequence[MemoryPeak]) -> Refusal | None:
    """Why a strategy does not fit into the devices' memory; None where it does."""
    for device, peak in enumerate(peaks):
        available = topology.memory_bytes(device)
        if peak.num_bytes > available:
            return Refusal(device, topology.devices[device].name, peak.num_bytes, available)
    return None


def _peak(always: int, changes: list[tuple[int, int]]) -> MemoryPeak:
    """What ends at a time is gone when something else begins."""
    changes.sort()
    levels = itertools.accumulate((change for _, change in changes), initial=always)
    moments = [0, *(moment for moment, _ in changes)]
    level, moment = max(zip(levels, moments, strict=True), key=lambda found: (found[0], -found[1]))
    return MemoryPeak(level, moment)


def _lifetimes(graph: TaskGraph, times: Sequence[TaskTime]) -> Iterator[tuple[int, int]]:
    """By task: from when to when its result is there."""
    after = successors(graph)
    backward = {
        (task.owner, task.tile): number for number, task in enumerate(graph.tasks) if task.kind is TaskKind.BACKWARD
    }

    def read_until(number: int) -> int:
        """When a task no longer needs what it read or made."""
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
    """When a result begins to take memory: gradients when the first contribution to them is worked out."""
    task = graph.tasks[number]
    before = graph.predecessors[number] if task.kind in (TaskKind.GRADIENT, TaskKind.BACKWARD) else ()
    contributions = (earlier for earlier in before if graph.tasks[earlier].kind is not TaskKind.FORWARD)
    return min([times[number].start_ns, *(times[earlier].start_ns for earlier in contributions)])
