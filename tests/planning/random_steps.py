"""Random graphs, topologies and strategies, with small rules of their own: for properties that hold for all."""

from __future__ import annotations

import dataclasses
import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from bow.planning.problem.box import Box, whole
from bow.planning.problem.device_topology import GIB, Device, DeviceKind, DeviceTopology, Link
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.problem.partition import Partition, Split, Tilings
from bow.planning.rules.rule import Dimension, Kind, Rule, Rules
from bow.planning.simulator.costs import TileTime


class RowsRule(Rule):
    """Outputs `[sample, channel]` from inputs `[sample, ...]`: each tile needs all channels of its samples."""

    def __init__(self, kind: str, channels: Kind | None = "A") -> None:
        self.kind, self.channels = kind, channels

    def dimensions(self, operator: PlanOperator, graph: OperatorGraph) -> tuple[Dimension, ...]:
        samples, channels = graph.output_shape(operator)
        return Dimension("sample", samples, "S"), Dimension("channel", channels, self.channels)

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        return tuple((box[0], *whole(graph.tensors[number].shape[1:])) for number in operator.inputs)


class LinearRule(RowsRule):
    """Weights `[channel, ...]`: a tile reads those of its channels."""

    def weight_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        return tuple((box[1], *whole(graph.weights[name].shape[1:])) for name in operator.weights)


class CellRule(LinearRule):
    """A linear operator with a second output of the same shape, and a second input of which it reads its own part."""

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        return super().input_boxes(operator, graph, box)[0], box

    def output_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        return box, box


class EqualRule(RowsRule):
    """Inputs of the output's shape, of which a tile reads its own part and so many channels to both sides."""

    def __init__(self, kind: str, halo: int = 0, *, is_view: bool = False) -> None:
        super().__init__(kind)
        self.halo, self.is_view = halo, is_view

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        (start, end), size = box[1], graph.output_shape(operator)[1]
        return tuple((box[0], (max(0, start - self.halo), min(size, end + self.halo))) for _ in operator.inputs)


class NormRule(EqualRule):
    """Sums over the samples of a channel in the middle; weights `[channel]`."""

    def weight_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        return tuple((box[1],) for _ in operator.weights)

    def sums(self, operator: PlanOperator) -> tuple[str, ...]:
        return "mean", "variance"

    def sum_box(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> Box:
        return (box[1],)


class PickRule(RowsRule):
    """Reads its own part of the first input, and of the second one only where the tile has channel 0."""

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        return box, (box if box[1][0] == 0 else None)


RULES = Rules()
for _rule in (
    LinearRule("linear", "P"),
    CellRule("cell", "P"),
    EqualRule("add"),
    EqualRule("view", is_view=True),
    EqualRule("window", halo=1),
    NormRule("norm"),
    PickRule("pick"),
):
    RULES.register(_rule)


@dataclass(frozen=True)
class Costs:
    """Times that are no one's: small, so that ties are frequent, and often 0. Operators that are alike take the
    same."""

    seed: int
    signature_ids: tuple[int, ...]
    kinds: tuple[DeviceKind, ...]
    largest_ns: int

    def tile_time(self, operator: int, box: Box, device: int) -> TileTime:
        which, kind = self.signature_ids[operator], self.kinds[device].name
        return TileTime(self._time("forward", which, box, kind), self._time("backward", which, box, kind))

    def update_ns(self, weight_bytes: int, device: int) -> int:
        return self._time("update", weight_bytes, self.kinds[device].name)

    def _time(self, *what: object) -> int:
        return zlib.crc32(repr((self.seed, *what)).encode()) % (self.largest_ns + 1)


@dataclass(frozen=True)
class Step:
    """A graph and what it runs on."""

    graph: OperatorGraph
    topology: DeviceTopology
    costs: Costs
    learners: int

    @property
    def devices_per_learner(self) -> int:
        return self.topology.num_devices // self.learners


def random_step(source: random.Random) -> Step:
    # Now and then so little memory that some strategies do not fit.
    topology = random_topology(source, source.choice([GIB, GIB, source.randint(300, 3000)]) / GIB)
    sum_us, overlap, passing = source.choice([0.0, 0.0, 0.002]), source.random() < 0.7, source.random() < 0.3
    topology = dataclasses.replace(topology, sum_us=sum_us, overlap=overlap, passing=passing)
    learners = source.choice([1, 1, *(n for n in (2, 3) if topology.num_devices % n == 0 and _is_uniform(topology))])
    kinds = tuple(device.kind for device in topology.devices)
    graph = random_graph(source)
    costs = Costs(source.randrange(100), Tilings(graph, RULES).signature_ids, kinds, source.choice([0, 3, 50, 1000]))
    return Step(graph, topology, costs, learners)


def random_strategy(source: random.Random, step: Step) -> Partition:
    splits = tuple(random_split(source, step, operator) for operator in range(len(step.graph.operators)))
    return Partition(step.graph.hash, splits, step.learners)


def random_split(source: random.Random, step: Step, operator: int) -> Split:
    dimensions = RULES.dimensions(step.graph.operators[operator], step.graph)
    degrees = tuple(
        1 if dimension.kind is None else source.randint(1, min(3, dimension.size)) for dimension in dimensions
    )
    devices = tuple(source.randrange(step.devices_per_learner) for _ in range(math.prod(degrees)))
    if source.random() < 0.3:
        devices = (devices[0],) * len(devices)
    return Split(degrees, devices)


def random_topology(source: random.Random, memory_gib: float = 1.0) -> DeviceTopology:
    kinds = [DeviceKind(name, memory_gib, 1.0, 1.0) for name in ("one", "two")]
    count = source.randint(1, 6)
    devices = [Device(f"d{number}", source.choice(kinds[: source.choice([1, 1, 2])])) for number in range(count)]
    names = [device.name for device in devices]

    def link(ends: Sequence[str], shared: bool) -> Link:
        # Few values, so that ties are frequent; some take no time at all.
        return Link(tuple(ends), source.choice([0.0, 0.0, 0.003]), source.choice([1e9, 1.0, 0.5, 0.3]), shared)

    shape = source.choice(["bus", "star", "lines"])
    if count == 1:
        return DeviceTopology("random", tuple(devices))
    if shape == "bus":
        return DeviceTopology("random", tuple(devices), (link(names, True),))
    if shape == "star":
        links = tuple(link((name, "switch"), source.random() < 0.3) for name in names)
        return DeviceTopology("random", tuple(devices), links, ("switch",))
    pairs = [(a, b) for number, a in enumerate(names) for b in names[number + 1 :]]
    return DeviceTopology("random", tuple(devices), tuple(link(pair, source.random() < 0.2) for pair in pairs))


def random_graph(source: random.Random, most: int = 8) -> OperatorGraph:
    return _Growing(source).grow(source.randint(1, most))


def _is_uniform(topology: DeviceTopology) -> bool:
    return len({device.kind for device in topology.devices}) == 1


class _Growing:
    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.samples = source.randint(1, 5)
        self.tensors: dict[int, TensorShape] = {}
        self.weights: dict[str, TensorShape] = {}
        self.operators: list[PlanOperator] = []
        self.batch = tuple(self.tensor(self.channels(), differentiable=source.random() < 0.5) for _ in range(2))

    def grow(self, operators: int) -> OperatorGraph:
        for _ in range(operators):
            kind = self.source.choice(["linear", "linear", "cell", "add", "view", "window", "norm", "pick", "unknown"])
            getattr(self, kind, self.equal)(kind)
        last = tuple({operator.outputs[0]: None for operator in self.operators[-3:]})
        loss = len(self.tensors)
        self.tensors[loss] = TensorShape(())
        self.operators.append(PlanOperator("loss", "loss", last, (loss,)))
        return OperatorGraph(tuple(self.operators), self.tensors, self.batch, self.weights, loss)

    def channels(self) -> int:
        return self.source.randint(1, 6)

    def tensor(self, channels: int, differentiable: bool = True) -> int:
        number = len(self.tensors)
        self.tensors[number] = TensorShape((self.samples, channels), self.source.choice([2, 4]), differentiable)
        return number

    def any_tensor(self) -> int:
        recent = list(self.tensors)[-6:]
        return self.source.choice(recent)

    def weight(self, shape: tuple[int, ...]) -> str:
        """Now and then one that is there already."""
        known = [name for name, weight in self.weights.items() if weight.shape == shape]
        if known and self.source.random() < 0.6:
            return self.source.choice(known)
        name = f"w{len(self.weights)}"
        self.weights[name] = TensorShape(shape, differentiable=self.source.random() < 0.85)
        return name

    def add_operator(
        self, kind: str, inputs: Sequence[int], outputs: Sequence[int], weights: Sequence[str] = ()
    ) -> None:
        name = f"{kind}{len(self.operators)}"
        self.operators.append(PlanOperator(name, kind, tuple(inputs), tuple(outputs), tuple(dict.fromkeys(weights))))

    def linear(self, kind: str) -> None:
        tensor = self.any_tensor()
        channels = self.channels()
        inside = self.tensors[tensor].shape[1]
        weights = [self.weight((channels, inside)), *([self.weight((channels,))] if self.source.random() < 0.5 else [])]
        self.add_operator(kind, [tensor], [self.tensor(channels)], weights)

    def cell(self, kind: str) -> None:
        tensor, other = self.any_tensor(), self.any_tensor()
        channels = self.tensors[other].shape[1]
        weights = [self.weight((channels, self.tensors[tensor].shape[1]))]
        outputs = [self.tensor(channels), self.tensor(channels, differentiable=self.source.random() < 0.8)]
        self.add_operator(kind, [tensor, other], outputs, weights)

    def norm(self, kind: str) -> None:
        tensor = self.any_tensor()
        channels = self.tensors[tensor].shape[1]
        self.add_operator(kind, [tensor], [self.tensor(channels)], [self.weight((channels,))])

    def unknown(self, kind: str) -> None:
        weights = [self.weight((self.channels(),))] if self.source.random() < 0.5 else []
        inputs = [self.any_tensor() for _ in range(self.source.randint(1, 2))]
        self.add_operator(kind, inputs, [self.tensor(self.channels())], weights)

    def equal(self, kind: str) -> None:
        tensor = self.any_tensor()
        channels = self.tensors[tensor].shape[1]
        same = [number for number, each in self.tensors.items() if each.shape == self.tensors[tensor].shape]
        others = [self.source.choice(same)] if kind in ("add", "pick") else []
        self.add_operator(kind, [tensor, *others], [self.tensor(channels, self.source.random() < 0.9)])
