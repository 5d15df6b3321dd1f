"""Rules: the boxes of inputs and weights for a box of an output, mapped dimension by dimension for most operators."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from bow.errors import GraphError
from bow.planning.problem.box import Box, Interval, volume, whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator

Kind: TypeAlias = Literal["S", "A", "P"]  # sample, attribute or parameter (splits weights)


@dataclass(frozen=True)
class Dimension:
    """A dimension of an operator's first output."""

    name: str  # such as `height`
    size: int
    kind: Kind | None  # None: cannot be split


class Rule(ABC):
    """How all operators of a kind can be split."""

    kind: str

    is_view: bool = False  # whether the output is a view of the input, without computation

    @abstractmethod
    def dimensions(self, operator: PlanOperator, graph: OperatorGraph) -> tuple[Dimension, ...]:
        """Return the dimensions of the first output."""

    @abstractmethod
    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        """Return the box of each input that a tile reads, halo included; None: nothing."""

    def weight_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        """Return the box of each weight that a tile reads; tiles with equal boxes are replicas that sum gradients."""
        return tuple(whole(graph.weights[name].shape) for name in operator.weights)

    def output_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        """Return the box of each output that a tile computes; the first is `box` itself."""
        if len(operator.outputs) > 1:
            raise GraphError(
                f"the rule of {operator.kind!r} does not define the boxes of its other outputs; override output_boxes"
            )
        return (box,)

    def flops(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> float:
        """Return the floating-point operations of a tile's forward pass: its share of the operator's."""
        return operator.flops * volume(box) / max(1, volume(whole(graph.output_shape(operator))))

    def sums(self, operator: PlanOperator) -> tuple[str, ...]:
        """Return the names of the quantities summed over tiles within the operator, such as batch statistics."""
        return ()

    def sum_box(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> Box:
        """Return the part of the sums, such as channels, that a tile adds to; tiles with the same part are summed."""
        return ()


class WholeRule(Rule):
    """Default for operators without a rule: no dimension can be split."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def dimensions(self, operator: PlanOperator, graph: OperatorGraph) -> tuple[Dimension, ...]:
        return tuple(Dimension(f"dimension {n}", size, None) for n, size in enumerate(graph.output_shape(operator)))

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        return tuple(whole(graph.tensors[number].shape) for number in operator.inputs)

    def output_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        return tuple(whole(graph.tensors[number].shape) for number in operator.outputs)


class Rules:
    """Registry of rules by kind of operator."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}

    def register(self, rule: Rule) -> None:
        self._rules[rule.kind] = rule

    def __contains__(self, kind: object) -> bool:
        return kind in self._rules

    def dimensions(self, operator: PlanOperator, graph: OperatorGraph) -> tuple[Dimension, ...]:
        return self.of(operator).dimensions(operator, graph)

    def of(self, operator: PlanOperator) -> Rule:
        """Return the rule of an operator's kind; `WholeRule` if none is registered."""
        return self._rules.get(operator.kind) or WholeRule(operator.kind)


class Side(ABC):
    """The interval of one operand dimension that a tile needs."""

    dim: int | None  # the output dimension it depends on; None: on none

    @abstractmethod
    def interval(self, box: Box, size: int) -> Interval | None:
        """Return the interval of a dimension of this size for the tile with output `box`; None: nothing."""


@dataclass(frozen=True)
class Whole(Side):
    """The whole dimension, such as one that is summed over."""

    dim: None = field(default=None, init=False)

    def interval(self, box: Box, size: int) -> Interval | None:
        return 0, size


@dataclass(frozen=True)
class Along(Side):
    """The same interval as in the output."""

    dim: int

    def interval(self, box: Box, size: int) -> Interval | None:
        return box[self.dim]


@dataclass(frozen=True)
class Strided(Side):
    """Every `step`-th element from `start`, as for a slice."""

    dim: int
    start: int
    step: int = 1

    def interval(self, box: Box, size: int) -> Interval | None:
        first, end = box[self.dim]
        return self.start + first * self.step, self.start + (end - 1) * self.step + 1


@dataclass(frozen=True)
class Fixed(Side):
    """One element, the same for every tile."""

    index: int
    dim: None = field(default=None, init=False)

    def interval(self, box: Box, size: int) -> Interval | None:
        return self.index, self.index + 1


@dataclass(frozen=True)
class Shifted(Side):
    """An operand placed at an offset in the output, as for concatenation; None for tiles that do not overlap it."""

    dim: int
    offset: int

    def interval(self, box: Box, size: int) -> Interval | None:
        start, end = max(0, box[self.dim][0] - self.offset), min(size, box[self.dim][1] - self.offset)
        return (start, end) if start < end else None


@dataclass(frozen=True)
class SlidingWindow(Side):
    """The windows of a convolution or pooling, halo included, clipped to the operand."""

    dim: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def unclipped_interval(self, box: Box) -> Interval:
        """Return the extent of the windows, not clipped to the operand."""
        first, end = box[self.dim]
        start = first * self.stride - self.padding
        return start, (end - 1) * self.stride - self.padding + self.dilation * (self.kernel - 1) + 1

    def interval(self, box: Box, size: int) -> Interval | None:
        start, end = self.unclipped_interval(box)
        # Windows entirely in the padding get one element: an operand that is None would get no gradient.
        start = min(max(start, 0), size - 1)
        return start, max(start + 1, min(end, size))


@dataclass(frozen=True)
class Adaptive(Side):
    """The windows of adaptive pooling: output i covers `floor(i n / m)` to `ceil((i + 1) n / m)`."""

    dim: int
    output: int

    def interval(self, box: Box, size: int) -> Interval | None:
        first, end = box[self.dim]
        return first * size // self.output, -(-end * size // self.output)


@dataclass(frozen=True)
class Grouped(Side):
    """The input channels of the groups that contain a tile's output channels, in a grouped convolution."""

    dim: int
    groups: int
    output: int

    def interval(self, box: Box, size: int) -> Interval | None:
        first, end = box[self.dim]
        outputs, inputs = self.output // self.groups, size // self.groups
        return first // outputs * inputs, -(-end // outputs) * inputs


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """The shapes of an operator's tensors."""

    operands: tuple[Shape, ...]  # in the order of its arguments
    output: Shape


def places(operator: PlanOperator) -> list[tuple[str, int]]:
    """Return for each operand its kind (`input` or `weight`) and its index among those."""
    # Unless the attribute `operands` gives the order, all inputs come before all weights.
    default = ["input"] * len(operator.inputs) + ["weight"] * len(operator.weights)
    counts = {"input": 0, "weight": 0}
    found = []
    for kind in operator.attributes.get("operands", default):
        found.append((kind, counts[kind]))
        counts[kind] += 1
    return found


def shapes_of(operator: PlanOperator, graph: OperatorGraph) -> Shapes:
    of = {
        "input": [graph.tensors[number].shape for number in operator.inputs],
        "weight": [graph.weights[name].shape for name in operator.weights],
    }
    return Shapes(tuple(of[kind][index] for kind, index in places(operator)), graph.output_shape(operator))


class MappedRule(Rule):
    """A rule derived from the sides of its operands."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @abstractmethod
    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:
        """Return the side of each dimension of each operand."""

    def unsplit(self, attributes: Any, shapes: Shapes) -> Collection[int]:
        """Return the output dimensions that must not be split."""
        return ()

    def names(self, rank: int) -> Sequence[str]:
        return [f"dimension {number}" for number in range(rank)]

    def dimensions(self, operator: PlanOperator, graph: OperatorGraph) -> tuple[Dimension, ...]:
        shapes = shapes_of(operator, graph)
        unsplit, sample = self.unsplit(operator.attributes, shapes), operator.attributes.get("sample", 0)
        sides = self.sides(operator.attributes, shapes)
        splits_weights = {
            side.dim for (kind, _), of in zip(places(operator), sides, strict=True) if kind == "weight" for side in of
        }
        names = self.names(len(shapes.output))

        def kind_of(dim: int) -> Kind | None:
            if dim in unsplit:
                return None
            if dim in splits_weights:
                return "P"
            return "S" if dim == sample else "A"

        return tuple(
            Dimension("sample" if kind_of(dim) == "S" else names[dim], size, kind_of(dim))
            for dim, size in enumerate(shapes.output)
        )

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        return tuple(self._boxes(operator, graph, box, "input"))

    def weight_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        boxes = self._boxes(operator, graph, box, "weight")
        assert None not in boxes, "a weight that some tiles do not read has to be an input"
        return tuple(found for found in boxes if found is not None)

    def _boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box, wanted: str) -> list[Box | None]:
        shapes = shapes_of(operator, graph)
        sides = self.sides(operator.attributes, shapes)
        return [
            _box(of, box, shape)
            for (kind, _), of, shape in zip(places(operator), sides, shapes.operands, strict=True)
            if kind == wanted
        ]


def _box(sides: Sequence[Side], box: Box, shape: Shape) -> Box | None:
    found: list[tuple[int, int]] = []
    for side, size in zip(sides, shape, strict=True):
        interval = side.interval(box, size)
        if interval is None:
            return None
        found.append(interval)
    return tuple(found)


def broadcast(shape: Shape, output: Shape) -> list[Side]:
    """Return the sides of an operand that is broadcast to the output's shape, as in PyTorch."""
    missing = len(output) - len(shape)
    return [Whole() if size == 1 else Along(missing + dim) for dim, size in enumerate(shape)]
