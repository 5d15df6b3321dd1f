"""What every device is busy with in a step: computing, and copying."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.simulator.tasks import Task, TaskKind


@dataclass(frozen=True)
class DeviceLoad:
    """What a device is busy with in a step, in nanoseconds.

    Attributes:
        device: its name.
        forward_ns: of forward passes.
        backward_ns: of backward passes.
        update_ns: of updates.
        copied_from_processor_ns: of copies that come from a processor.
        copied_from_accelerator_ns: of those that come from another device.
        summed_ns: of sums over several devices in which it takes part.
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
        """Of all that it computes."""
        return self.forward_ns + self.backward_ns + self.update_ns

    @property
    def copying_ns(self) -> int:
        """Of all copies that come to it, and of sums."""
        return self.copied_from_processor_ns + self.copied_from_accelerator_ns + self.summed_ns

    def plus(self, **ns: int) -> "DeviceLoad":
        """The same with more of something."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return DeviceLoad(**{**values, **{name: values[name] + more for name, more in ns.items()}})


_COMPUTING = {TaskKind.FORWARD: "forward_ns", TaskKind.BACKWARD: "backward_ns", TaskKind.UPDATE: "update_ns"}


def device_loads(result: SimulationResult, processors: Sequence[int] = ()) -> tuple[DeviceLoad, ...]:
    """What every device is busy with.

    Copies are counted where they arrive. Those of weights' gradients are sums over the devices that have a copy of the
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
    """How much more the busiest device computes than all do on average; 1: all the same.

    Example:
        >>> imbalance([DeviceLoad("a", forward_ns=3), DeviceLoad("b", forward_ns=1)])
        1.5
    """
    total = sum(load.computing_ns for load in loads)
    return max(load.computing_ns for load in loads) * len(loads) / total if total else 1.0


def _ends(task: Task, home: int) -> tuple[int, int]:
    """From where and to where: a gradient goes back to the device of the tile that made the tensor."""
    return (home, task.device) if task.kind is TaskKind.TRANSFER else (task.device, home)
