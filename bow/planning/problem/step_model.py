"""All about a step that no strategy changes: what is simulated again and again with other splits."""

from functools import cached_property

from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.tiling import Tilings
from bow.planning.rules.rule import Rules
from bow.planning.simulator.collectives import Collective
from bow.planning.simulator.task_costs import Costs, TaskCosts
from bow.planning.simulator.tasks import Ranks
from bow.planning.simulator.weight_groups import weight_groups

GRADIENT_COPIES = 1.0
"""Gradients of weights take as much memory as the weights."""

AVERAGING_COPIES = 5.0
"""Averaged learners keep so many more copies of a model: correction, central model, its next and last, their sum."""


class StepModel:
    """A step of training, wherever its operators are computed.

    Args:
        graph: its operators.
        rules: that are known.
        topology: devices and channels.
        costs: of the computing tasks.
        learners: how many groups of devices repeat the step, each on a batch of its own.
        optimizer_bytes_per_weight_byte: what the optimizer keeps: 1 for momentum, 2 for Adam.
        overlap: whether devices compute while they send and receive.

    Raises:
        TopologyError: the devices cannot be divided among the learners.
    """

    def __init__(
        self,
        graph: OperatorGraph,
        rules: Rules,
        topology: DeviceTopology,
        costs: Costs,
        *,
        learners: int = 1,
        optimizer_bytes_per_weight_byte: float = 1.0,
        overlap: bool = True,
    ) -> None:
        self.graph, self.rules, self.topology = graph, rules, topology
        self.learners = learners
        self.device_groups = topology.groups(learners)
        self.overlap = overlap
        averaging = AVERAGING_COPIES if learners > 1 else 0.0
        self.copies = 1.0 + GRADIENT_COPIES + optimizer_bytes_per_weight_byte + averaging
        """How many times the bytes of trainable weights stay in memory all the time."""
        self.tilings = Tilings(graph, rules)
        self.costs = TaskCosts(costs, topology, self.tilings.alike)
        self.weight_groups = weight_groups(graph)
        self.ranks = Ranks(learners * len(graph.operators), learners * len(self.weight_groups))
        self._collectives: dict[tuple[int, ...], Collective] = {}

    @cached_property
    def has_backward(self) -> tuple[bool, ...]:
        """By operator: whether it has weights to train, or reads something that leads back to some."""
        found: list[bool] = []
        for operator in self.graph.operators:
            trains = any(self.graph.weights[name].differentiable for name in operator.weights)
            made = (self.makers.get(tensor) for tensor in operator.inputs if self.graph.tensors[tensor].differentiable)
            found.append(trains or any(maker is not None and found[maker[0]] for maker in made))
        return tuple(found)

    @cached_property
    def makers(self) -> dict[int, tuple[int, int]]:
        """By tensor: the operator that makes it, and the manieth of its outputs it is."""
        return {
            tensor: (index, slot)
            for index, operator in enumerate(self.graph.operators)
            for slot, tensor in enumerate(operator.outputs)
        }

    def flows(self, tensor: int) -> bool:
        """Whether a gradient goes back through a tensor that an operator makes."""
        return self.graph.tensors[tensor].differentiable and self.has_backward[self.makers[tensor][0]]

    def transfer_places(self, source: int, target: int) -> tuple[int, ...]:
        """What a transfer between two devices occupies."""
        ends = () if self.overlap else tuple(sorted((source, target)))
        return (*ends, *self.places(self.topology.route(source, target)))

    def collective(self, devices: tuple[int, ...]) -> Collective:
        """A sum over some devices, in ascending order."""
        if devices not in self._collectives:
            self._collectives[devices] = Collective.over(self.topology, devices)
        return self._collectives[devices]

    def collective_places(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        """What a sum over some devices occupies."""
        return (*(() if self.overlap else devices), *self.places(self.collective(devices).channels))

    def places(self, channels: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of channels among all places: behind the devices."""
        return tuple(self.topology.num_devices + channel for channel in channels)

    def place_name(self, place: int) -> str:
        """What a place is called."""
        devices = self.topology.devices
        return devices[place].name if place < len(devices) else self.topology.channel(place - len(devices)).name
