"""Work and time of tiles: from a roofline model of the device, or measured."""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bow.planning.problem.box import Box, sizes, whole
from bow.planning.problem.device_topology import DeviceKind, DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.problem.partition import Tiling
from bow.planning.rules.rule import Rules

GATHERS = frozenset({"embedding"})  # read few rows of their weights; their gradient has all
KERNELS = {"lstm_cell": 3, "attention": 4, "batch_norm": 2, "layer_norm": 2, "cross_entropy": 2}
"""Kernels launched by an operator's forward pass, if not one."""


@dataclass(frozen=True)
class PassWork:
    """Work of a tile's forward or backward pass."""

    flops: float
    num_bytes: int  # read and written
    kernels: int  # launched; 0: nothing to do


@dataclass(frozen=True)
class TileWork:
    """Work of a tile."""

    forward: PassWork
    backward: PassWork  # gradients of the inputs and of the weights
    outputs: int  # number of output elements


Shapes: TypeAlias = tuple[tuple[int, ...] | None, ...]  # None: nothing is read


def tile_shapes(graph: OperatorGraph, rules: Rules, operator: PlanOperator, box: Box) -> tuple[Shapes, Shapes, Shapes]:
    rule = rules.of(operator)
    inputs = rule.input_boxes(operator, graph, box)
    return (
        tuple(None if part is None else sizes(part) for part in inputs),
        tuple(map(sizes, rule.weight_boxes(operator, graph, box))),
        tuple(map(sizes, rule.output_boxes(operator, graph, box))),
    )


def tile_key(graph: OperatorGraph, rules: Rules, operator: PlanOperator, box: Box) -> str:
    """Identify tiles that take the same time: by kind, attributes, and the shapes and types of their tensors."""
    inputs, *others = tile_shapes(graph, rules, operator, box)
    read = [*(graph.tensors[number] for number in operator.inputs), *(graph.weights[name] for name in operator.weights)]
    of_read = [[tensor.itemsize, tensor.differentiable] for tensor in read]
    described = [operator.kind, dict(operator.attributes), inputs, of_read, *others]
    return json.dumps(described, sort_keys=True, default=str)


def tile_work(graph: OperatorGraph, rules: Rules, operator: PlanOperator, box: Box) -> TileWork:
    # The backward pass reads the output's gradient once for the inputs and once for the weights; each is half its work.
    rule = rules.of(operator)
    input_shapes, weight_shapes, output_shapes = tile_shapes(graph, rules, operator, box)
    outputs = sum(math.prod(shape) for shape in output_shapes if shape is not None)
    if rule.is_view:
        return TileWork(PassWork(0.0, 0, 0), PassWork(0.0, 0, 0), outputs)
    tensors = [graph.tensors[number] for number in operator.inputs]
    read = _bytes(input_shapes, tensors)
    made = _bytes(output_shapes, [graph.tensors[number] for number in operator.outputs])
    own = [graph.weights[name] for name in operator.weights]
    weights = _bytes(weight_shapes, own)
    flops, kernels = rule.flops(operator, graph, box), KERNELS.get(operator.kind, 1)
    looked_at = made if operator.kind in GATHERS else weights
    flowing = [shape if tensor.differentiable else None for shape, tensor in zip(input_shapes, tensors, strict=True)]
    to_inputs = any(shape is not None for shape in flowing)
    trained = [shape if weight.differentiable else None for shape, weight in zip(weight_shapes, own, strict=True)]
    gradients = to_inputs + any(weight.differentiable for weight in own)
    back = gradients * made + read + looked_at + _bytes(flowing, tensors) + _bytes(trained, own)
    return TileWork(
        PassWork(flops, read + looked_at + made, kernels),
        PassWork(flops * gradients, back if gradients else 0, kernels * gradients),
        outputs,
    )


def _bytes(shapes: Iterable[Sequence[int] | None], tensors: Sequence[TensorShape]) -> int:
    return sum(
        math.prod(shape) * tensor.itemsize for shape, tensor in zip(shapes, tensors, strict=True) if shape is not None
    )


Times: TypeAlias = NDArray[np.int64]  # nanoseconds, by tile


@dataclass(frozen=True)
class TileTime:
    """Time of a tile."""

    forward_ns: int
    backward_ns: int

    @property
    def total_ns(self) -> int:
        return self.forward_ns + self.backward_ns

    def scaled(self, factor: float) -> "TileTime":
        return TileTime(round(factor * self.forward_ns), round(factor * self.backward_ns))


class Costs(Protocol):
    """Times of computing tasks, in nanoseconds."""

    # Must be equal for devices of one kind, and for operators of equal kind, attributes, sizes and work.

    def tile_time(self, operator: int, box: Box, device: int) -> TileTime:
        """Time of the tile that computes this box of the operator's first output."""
        ...

    def update_ns(self, weight_bytes: int, device: int) -> int: ...


class TaskCosts:
    """Cache of costs, by tile and device kind."""

    def __init__(self, costs: Costs, topology: DeviceTopology, alike: Sequence[int]) -> None:
        self._costs, self._alike = costs, alike
        examples = {topology.devices[number].kind: number for number in topology.of_each_kind}
        self._examples = [examples[device.kind] for device in topology.devices]  # by device: the first of its kind
        self._tiles: dict[tuple[int, tuple[int, ...], int], tuple[Times, Times]] = {}
        self._updates: dict[tuple[int, int], int] = {}

    def of_tiles(self, operator: int, tiling: Tiling, devices: Sequence[int]) -> tuple[Times, Times]:
        examples = [self._examples[device] for device in devices]
        used = sorted(set(examples))
        if len(used) == 1:
            return self._on(operator, tiling, used[0])
        columns = [self._on(operator, tiling, device) for device in used]
        rows = [used.index(device) for device in examples]
        tiles = np.arange(len(examples))
        forward, backward = (np.stack(of)[rows, tiles] for of in zip(*columns, strict=True))
        return forward, backward

    def update_ns(self, weight_bytes: int, device: int) -> int:
        key = weight_bytes, self._examples[device]
        if key not in self._updates:
            self._updates[key] = self._costs.update_ns(weight_bytes, device)
        return self._updates[key]

    def _on(self, operator: int, tiling: Tiling, device: int) -> tuple[Times, Times]:
        key = self._alike[operator], tiling.degrees, device
        if key not in self._tiles:
            times = [self._costs.tile_time(operator, box, device) for box in tiling.boxes]
            self._tiles[key] = (
                np.array([time.forward_ns for time in times], np.int64),
                np.array([time.backward_ns for time in times], np.int64),
            )
        return self._tiles[key]


UPDATE_PASSES = 5
"""Passes of an update over its weights' bytes: SGD with momentum reads three tensors and writes two."""


class RooflineCosts:
    """Roofline model: time from a device's arithmetic, bandwidth and kernel overhead."""

    # Williams, Waterman, Patterson: Roofline, an insightful visual performance model, 2009. Tiles with few outputs do
    # not fill the device: the products of NMT take 38 % less time split by channels than by samples (FlexFlow 8.2.1).

    def __init__(self, graph: OperatorGraph, rules: Rules, topology: DeviceTopology) -> None:
        self._graph, self._rules, self._topology = graph, rules, topology
        self._works: dict[tuple[int, Box], TileWork] = {}

    def tile_time(self, operator: int, box: Box, device: int) -> TileTime:
        if (operator, box) not in self._works:
            described = self._graph.operators[operator]
            self._works[operator, box] = tile_work(self._graph, self._rules, described, box)
        work, kind = self._works[operator, box], self._topology.devices[device].kind
        return TileTime(_time_ns(work.forward, work.outputs, kind), _time_ns(work.backward, work.outputs, kind))

    def update_ns(self, weight_bytes: int, device: int) -> int:
        kind = self._topology.devices[device].kind
        return _time_ns(PassWork(0.0, UPDATE_PASSES * weight_bytes, 1 if weight_bytes else 0), 1, kind)


def _time_ns(part: PassWork, outputs: int, kind: DeviceKind) -> int:
    if not part.kernels:
        return 0
    arithmetic_s = part.flops * (1 + kind.half_outputs / max(outputs, 1)) / (kind.tflops * 1e12)
    memory_s = part.num_bytes / (kind.gb_per_s * 1e9)
    return round(part.kernels * kind.overhead_us * 1e3 + max(arithmetic_s, memory_s) * 1e9)


@dataclass
class TileTimes:
    """Measured times, by operator, tile shape and device kind."""

    tiles: dict[str, TileTime] = field(default_factory=dict)  # by `tile_key`
    # by graph hash: update time in ns per byte of weights
    updates: dict[str, float] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        tiles = {key: [time.forward_ns, time.backward_ns] for key, time in self.tiles.items()}
        return {"tiles": tiles, "updates": self.updates}

    @classmethod
    def from_plain(cls, read: Any) -> "TileTimes":
        """Restore from `to_plain`; a negative or non-finite time is a `ValueError`."""
        tiles = {key: TileTime(int(forward), int(backward)) for key, (forward, backward) in read["tiles"].items()}
        updates = {graph: float(time) for graph, time in read["updates"].items()}
        times = [*updates.values(), *(each for time in tiles.values() for each in (time.forward_ns, time.backward_ns))]
        if not all(0 <= time < math.inf for time in times):
            raise ValueError("a time is below 0 or not finite")
        return cls(tiles, updates)


class MeasuredCosts:
    """Measured times; where there are none, the roofline's, corrected by its error on measured operators."""

    # The error on the whole operator if measured, else the geometric mean over the graph's operators.

    def __init__(
        self, graph: OperatorGraph, rules: Rules, topology: DeviceTopology, times: Mapping[str, TileTimes]
    ) -> None:
        self._graph, self._rules, self._topology, self._times = graph, rules, topology, times
        self._roofline = RooflineCosts(graph, rules, topology)
        self._found: dict[tuple[int, Box, str], TileTime] = {}
        self._factors: dict[str, dict[int, float]] = {}

    def tile_time(self, operator: int, box: Box, device: int) -> TileTime:
        kind = self._topology.devices[device].kind.name
        key = operator, box, kind
        if key not in self._found:
            self._found[key] = self._measured(operator, box, kind) or self._scaled(operator, box, device, kind)
        return self._found[key]

    def update_ns(self, weight_bytes: int, device: int) -> int:
        times = self._times.get(self._topology.devices[device].kind.name)
        if times is None or self._graph.hash not in times.updates:
            return self._roofline.update_ns(weight_bytes, device)
        return round(times.updates[self._graph.hash] * weight_bytes)

    def _measured(self, operator: int, box: Box, kind: str) -> TileTime | None:
        if kind not in self._times:
            return None
        return self._times[kind].tiles.get(tile_key(self._graph, self._rules, self._graph.operators[operator], box))

    def _scaled(self, operator: int, box: Box, device: int, kind: str) -> TileTime:
        if kind not in self._factors:
            self._factors[kind] = dict(self._ratios(device, kind))
        factors = self._factors[kind]
        factor = factors.get(operator) or (statistics.geometric_mean(factors.values()) if factors else 1.0)
        return self._roofline.tile_time(operator, box, device).scaled(factor)

    def _ratios(self, device: int, kind: str) -> Iterator[tuple[int, float]]:
        """By operator measured as a whole: ratio of measured to predicted time."""
        for number, operator in enumerate(self._graph.operators):
            box = whole(self._graph.output_shape(operator))
            measured, predicted = self._measured(number, box, kind), self._roofline.tile_time(number, box, device)
            if measured is not None and predicted.total_ns and measured.total_ns:
                yield number, measured.total_ns / predicted.total_ns
