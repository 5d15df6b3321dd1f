"""What becomes of a group of weights where one operator's split decides who holds them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from bow.planning.problem.box import Box
from bow.planning.problem.split import Split
from bow.planning.problem.step_model import StepModel
from bow.planning.simulator.weight_groups import WeightGroup, replica_bytes


@dataclass(frozen=True)
class GroupTimes:
    """How long gradients of a group of weights are summed, and the weights updated.

    Attributes:
        reductions_ns: by devices that hold the same part: the sum over them.
        updates_ns: by device that holds a part: its update.
    """

    reductions_ns: Mapping[tuple[int, ...], int]
    updates_ns: Mapping[int, int]

    def behind(self, device: int) -> int:
        """How long it takes at least, from when a device has its gradients until all is updated that waits for them."""
        waiting = [
            time + max(self.updates_ns[member] for member in members)
            for members, time in self.reductions_ns.items()
            if device in members
        ]
        return max([self.updates_ns.get(device, 0), *waiting])


def group_times(model: StepModel, group: WeightGroup, reader: int, split: Split) -> GroupTimes:
    """How long reductions and updates take, as if only one operator read the weights."""
    if not group.trainable:
        return GroupTimes({}, {})
    names = model.graph.operators[reader].weights
    places = [names.index(name) for name in group.weights]
    holdings: dict[tuple[Box, ...], list[int]] = defaultdict(list)
    for boxes, device in zip(model.tilings.of(reader, split.degrees).weights, split.devices, strict=True):
        holdings[tuple(boxes[place] for place in places)].append(device)
    shared = replica_bytes(model.graph, group, holdings)
    held: dict[int, int] = defaultdict(int)
    for members, num_bytes in shared.items():
        for device in members:
            held[device] += num_bytes
    return GroupTimes(
        {
            members: model.collective(members).time_ns(num_bytes)
            for members, num_bytes in shared.items()
            if len(members) > 1
        },
        {device: model.costs.update_ns(num_bytes, device) for device, num_bytes in held.items()},
    )
