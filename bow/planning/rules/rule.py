"""Rules: the boxes of inputs and weights that an operator needs for a box of its output."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bow.errors import GraphError
from bow.planning.problem.box import Box, volume, whole
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
