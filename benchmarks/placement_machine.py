"""The machine of the placement benchmark, and the load of its devices."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.simulator.step_model import Task, TaskKind

PROCESSOR = 0
"""Device number of the processor."""

HASWELL = DeviceKind("haswell", memory_gib=50.0, tflops=0.93, gb_per_s=48.0, overhead_us=5.0, half_outputs=1152)
"""18 cores at 2.3 GHz: 70 % of 1.32 TFLOP/s (two 8-wide fused multiply-adds per cycle and core) and of 68 GB/s.

The paper allows 50 GB of memory. Four results per arithmetic unit reach half the speed, as in the topologies of
bow; calling an operator costs half as much as launching a kernel.
"""

K80 = DeviceKind("k80", memory_gib=11.17, tflops=3.0, gb_per_s=168.0, overhead_us=10.0, half_outputs=9984)
"""One of the two GPUs of a board, as in the topologies of bow; 11.17 of its 12 GB are usable."""

PCIE_GB_PER_S, PCIE_LATENCY_US = 12.0, 4.0
"""PCIe 3.0 x16, between GPUs."""

HOST_GB_PER_S, HOST_LATENCY_US = 6.0, 8.0
"""Between processor and GPUs: copies are staged in pinned memory, and all GPUs share the link.

Mirhoseini et al., 2017, section 4.5: copies between a GPU and a CPU are in general slower than between GPUs.
"""

BOARDS = 2
"""GPUs per board, which share its link to the processor."""


def k80_machine(gpus: int, memory_gib: float = K80.memory_gib, copies: float = 1.0) -> DeviceTopology:
    """A processor, device 0, and K80 GPUs, two per board.

    Example:
        >>> machine = k80_machine(4)
        >>> [device.name for device in machine.devices]
        ['cpu', 'gpu0', 'gpu1', 'gpu2', 'gpu3']
        >>> machine.transfer_ns(10**6, 0, 1) > machine.transfer_ns(10**6, 1, 2)
        True

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 4.1.
    """
    kind = DeviceKind(K80.name, memory_gib, K80.tflops, K80.gb_per_s, K80.overhead_us, K80.half_outputs)
    boards = [f"board{number}" for number in range(-(-gpus // BOARDS))]
    devices = [Device("cpu", HASWELL), *(Device(f"gpu{number}", kind) for number in range(gpus))]

    def link(ends: tuple[str, str], latency_us: float, gb_per_s: float) -> Link:
        return Link(ends, latency_us * copies, gb_per_s / copies)

    of_gpus = [
        link((f"gpu{number}", boards[number // BOARDS]), PCIE_LATENCY_US, PCIE_GB_PER_S) for number in range(gpus)
    ]
    of_boards = [link((board, "host"), PCIE_LATENCY_US, PCIE_GB_PER_S) for board in boards]
    to_processor = link(("cpu", "host"), HOST_LATENCY_US, HOST_GB_PER_S)
    links = (*of_gpus, *of_boards, to_processor)
    name = f"haswell with {gpus} k80"
    return DeviceTopology(name, tuple(devices), links, (*boards, "host"))


@dataclass(frozen=True)
class DeviceLoad:
    """Busy time of a device in a step, in nanoseconds.

    Attributes:
        device: its name.
        forward_ns: forward passes.
        backward_ns: backward passes.
        update_ns: updates.
        copied_from_processor_ns: copies from a processor.
        copied_from_accelerator_ns: copies from another device.
        summed_ns: sums over several devices that include it.
    """

    device: str
    forward_ns: int = 0
    backward_ns: int = 0
    update_ns: int = 0
    copied_from_processor_ns: int = 0
    copied_from_accelerator_ns: int = 0
    summed_ns: int = 0

    @property
    def computing_ns(self) -> int:
        return self.forward_ns + self.backward_ns + self.update_ns

    @property
    def copying_ns(self) -> int:
        """Time of all incoming copies and of sums."""
        return self.copied_from_processor_ns + self.copied_from_accelerator_ns + self.summed_ns

    def plus(self, **ns: int) -> "DeviceLoad":
        """Return a copy with durations added."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return DeviceLoad(**{**values, **{name: values[name] + more for name, more in ns.items()}})


_COMPUTING = {TaskKind.FORWARD: "forward_ns", TaskKind.BACKWARD: "backward_ns", TaskKind.UPDATE: "update_ns"}


def device_loads(result: SimulationResult, processors: Sequence[int] = ()) -> tuple[DeviceLoad, ...]:
    """Return the load of every device.

    Copies are counted at their destination. Those of weight gradients are sums over the devices that have a copy of the
    weights, and count for each of them.

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 4.5.
    """
    topology = result.model.topology
    found = [DeviceLoad(device.name) for device in topology.devices]
    homes = {(task.owner, task.tile): task.device for task in result.tasks if task.kind is TaskKind.FORWARD}
    holders = defaultdict[int, list[int]](list)  # by group of weights: the devices that update it
    for task in result.tasks:
        if task.kind is TaskKind.UPDATE:
            holders[task.owner].append(task.device)
    for task in result.tasks:
        if task.kind in _COMPUTING:
            found[task.device] = found[task.device].plus(**{_COMPUTING[task.kind]: task.duration_ns})
        elif task.kind in (TaskKind.TRANSFER, TaskKind.GRADIENT):
            source, target = _ends(task, homes[task.owner, task.tile])
            sort = "copied_from_processor_ns" if source in processors else "copied_from_accelerator_ns"
            found[target] = found[target].plus(**{sort: task.duration_ns})
        elif task.kind is TaskKind.REDUCTION:
            for device in holders[task.owner]:
                found[device] = found[device].plus(summed_ns=task.duration_ns)
    return tuple(found)


def imbalance(loads: Sequence[DeviceLoad]) -> float:
    """Ratio of the largest to the mean computing time of devices; 1: balanced.

    Example:
        >>> imbalance([DeviceLoad("a", forward_ns=3), DeviceLoad("b", forward_ns=1)])
        1.5
    """
    total = sum(load.computing_ns for load in loads)
    return max(load.computing_ns for load in loads) * len(loads) / total if total else 1.0


def _ends(task: Task, home: int) -> tuple[int, int]:
    """Source and destination: a gradient goes to the device of the tile that made the tensor."""
    return (home, task.device) if task.kind is TaskKind.TRANSFER else (task.device, home)
