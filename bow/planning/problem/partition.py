"""Partitions: how every operator of a graph is split into tiles, and which devices compute them."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bow.errors import ScheduleError
from bow.files import JsonFormat, whole_numbers
from bow.planning.problem.box import Box, tiles, volume
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.rule import Rules


@dataclass(frozen=True)
class Split:
    """The tiles of one operator and the devices that compute them."""

    degrees: tuple[int, ...]  # number of parts of each dimension of the operator's first output
    devices: tuple[int, ...]  # device number of each tile, in row-major order; tiles may share a device

    @property
    def num_tiles(self) -> int:
        return math.prod(self.degrees)


def tiles_of(graph: OperatorGraph, operator: PlanOperator, split: Split) -> Iterator[Box]:
    """Yield the boxes of an operator's first output, in the order of `split.devices`."""
    return tiles(graph.output_shape(operator), split.degrees)


def whole_on(graph: OperatorGraph, operator: PlanOperator, device: int) -> Split:
    return Split((1,) * len(graph.output_shape(operator)), (device,))


def everything_on(graph: OperatorGraph, device: int = 0) -> tuple[Split, ...]:
    return tuple(whole_on(graph, operator, device) for operator in graph.operators)


def why_invalid(
    graph: OperatorGraph, operator: PlanOperator, split: Split, num_devices: int, rules: Rules
) -> str | None:
    dimensions = rules.dimensions(operator, graph)
    name = f"operator {operator.name!r}"
    if len(split.degrees) != len(dimensions):
        return f"{name} has {len(dimensions)} dimensions, got {len(split.degrees)} degrees; give one for each"
    for dimension, degree in zip(dimensions, split.degrees, strict=True):
        if degree < 1:
            return f"a degree must be at least 1, got {degree} for {dimension.name} of {name}"
        if degree > max(1, dimension.size):
            return (
                f"{name} has a {dimension.name} of {dimension.size}, got degree {degree}; give at most {dimension.size}"
            )
        if degree > 1 and dimension.kind is None:
            return f"{name} ({operator.kind}) cannot be split by {dimension.name}, got degree {degree}; give 1"
    if len(split.devices) != split.num_tiles:
        return f"{name} is split into {split.num_tiles} tiles, got {len(split.devices)} devices; give one for each"
    wrong = next((device for device in split.devices if not 0 <= device < num_devices), None)
    if wrong is not None:
        return f"{name} has a tile on device {wrong}, and there are {num_devices} (0 to {num_devices - 1})"
    return None


FORMAT = JsonFormat(
    "bow partition",
    version=1,
    subject="the partition",
    writer="Partition.to_json",
    remedy="plan again",
    refusal=ScheduleError,
)


@dataclass(frozen=True)
class Partition:
    """A split of every operator, and the number of learners."""

    # With k learners, the devices form k groups of equal size with consecutive numbers. The splits refer to the first
    # group; every other group repeats them on its own devices, with its own learner and batch.

    graph_hash: str  # `OperatorGraph.hash` of its graph
    splits: tuple[Split, ...]  # by operator
    learners: int = 1

    def check(self, graph: OperatorGraph, num_devices: int, rules: Rules) -> None:
        if self.graph_hash != graph.hash:
            raise ScheduleError(
                f"the partition is for graph {self.graph_hash}, this model's is {graph.hash}; "
                "plan again, with the same model, batch size and loss as in training"
            )
        if len(self.splits) != len(graph.operators):
            raise ScheduleError(
                f"the partition has {len(self.splits)} splits for {len(graph.operators)} operators; give each one"
            )
        size = self.devices_per_learner(num_devices)
        for operator, split in zip(graph.operators, self.splits, strict=True):
            wrong = why_invalid(graph, operator, split, size, rules)
            if wrong is not None:
                raise ScheduleError(wrong)

    def devices_per_learner(self, num_devices: int) -> int:
        if self.learners < 1:
            raise ScheduleError(f"learners must be at least 1, got {self.learners}")
        size, rest = divmod(num_devices, self.learners)
        if rest or not size:
            raise ScheduleError(
                f"{num_devices} devices cannot be divided among {self.learners} learners; "
                f"give learners a divisor of {num_devices}"
            )
        return size

    def to_json(self) -> str:
        return FORMAT.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Partition":
        return FORMAT.loads(text, cls._read)

    @classmethod
    def _read(cls, fields: dict[str, Any]) -> "Partition":
        splits = tuple(
            Split(whole_numbers(split["degrees"]), whole_numbers(split["devices"])) for split in fields["splits"]
        )
        (learners,) = whole_numbers([fields["learners"]])
        return cls(str(fields["graph_hash"]), splits, learners)


SUM_ITEMSIZE = 4  # bytes per element of sums over tiles within an operator


@dataclass(frozen=True)
class Tiling:
    """The tiles of an operator, independent of their devices."""

    degrees: tuple[int, ...]
    boxes: tuple[Box, ...]  # [tile]: box of the first output
    outputs: tuple[tuple[Box, ...], ...]  # [output][tile]: box that the tile computes
    inputs: tuple[tuple[Box | None, ...], ...]  # [input][tile]: box that the tile reads; None: nothing
    weights: tuple[tuple[Box, ...], ...]  # [tile][weight]: box that the tile reads
    sums: tuple[int, ...]  # [tile]: number of the sum it contributes to within the operator; () without sums
    sum_bytes: tuple[int, ...]  # [sum]: bytes summed
    output_bytes: tuple[int, ...]  # [tile]: bytes of its outputs; 0 if the operator is a view
    gradient_bytes: tuple[int, ...]  # [tile]: bytes of the gradients of its outputs

    @property
    def num_tiles(self) -> int:
        return len(self.boxes)

    def sums_over(self, devices: Sequence[int]) -> Iterator[tuple[int, int, list[int], tuple[int, ...]]]:
        """Yield number, bytes, tiles and devices of each sum that spans several of the tiles' devices."""
        for number, num_bytes in enumerate(self.sum_bytes):
            tiles = [tile for tile, of in enumerate(self.sums) if of == number]
            members = tuple(sorted({devices[tile] for tile in tiles}))
            if len(members) > 1:
                yield number, num_bytes, tiles, members


class Tilings:
    """Cached tilings of a graph's operators."""

    # Operators of equal kind, attributes, sizes and work, such as the steps of an unrolled layer, share theirs.

    def __init__(self, graph: OperatorGraph, rules: Rules) -> None:
        self._graph, self._rules = graph, rules
        numbers: dict[str, int] = {}
        signatures = [_signature(graph, operator) for operator in graph.operators]
        # [operator]: a number shared by identical operators
        self.signature_ids = tuple(numbers.setdefault(signature, len(numbers)) for signature in signatures)
        self._found: dict[tuple[int, tuple[int, ...]], Tiling] = {}

    def of(self, operator: int, degrees: tuple[int, ...]) -> Tiling:
        key = self.signature_ids[operator], degrees
        if key not in self._found:
            self._found[key] = _tiling(self._graph, self._graph.operators[operator], degrees, self._rules)
        return self._found[key]


def _tiling(graph: OperatorGraph, operator: PlanOperator, degrees: tuple[int, ...], rules: Rules) -> Tiling:
    rule = rules.of(operator)
    boxes = tuple(tiles_of(graph, operator, Split(degrees, ())))
    outputs = tuple(zip(*(rule.output_boxes(operator, graph, box) for box in boxes), strict=True))
    inputs = tuple(zip(*(rule.input_boxes(operator, graph, box) for box in boxes), strict=True))
    made = [graph.tensors[number] for number in operator.outputs]
    sums = rule.sums(operator)
    summed = [rule.sum_box(operator, graph, box) for box in boxes] if sums else []
    numbers = {box: number for number, box in enumerate(dict.fromkeys(summed))}

    def bytes_of(tile: int, which: Sequence[bool]) -> int:
        parts = zip(outputs, made, which, strict=True)
        return sum(volume(of[tile]) * tensor.itemsize for of, tensor, counts in parts if counts)

    return Tiling(
        degrees=degrees,
        boxes=boxes,
        outputs=outputs,
        inputs=inputs,
        weights=tuple(rule.weight_boxes(operator, graph, box) for box in boxes),
        sums=tuple(numbers[box] for box in summed),
        sum_bytes=tuple(len(sums) * volume(box) * SUM_ITEMSIZE for box in numbers),
        output_bytes=tuple(bytes_of(tile, [not rule.is_view for _ in made]) for tile in range(len(boxes))),
        gradient_bytes=tuple(bytes_of(tile, [tensor.differentiable for tensor in made]) for tile in range(len(boxes))),
    )


def _signature(graph: OperatorGraph, operator: PlanOperator) -> str:
    """Return a key of everything that rules and costs depend on."""
    tensors = [graph.tensors[number] for number in (*operator.inputs, *operator.outputs)]
    weights = [graph.weights[name] for name in operator.weights]
    described = [(tensor.shape, tensor.itemsize, tensor.differentiable) for tensor in (*tensors, *weights)]
    sizes = len(operator.inputs), len(operator.outputs), operator.flops
    return json.dumps([operator.kind, dict(operator.attributes), sizes, described], sort_keys=True, default=str)
