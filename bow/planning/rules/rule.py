"""Rules: which parts of its inputs and weights an operator needs for a part of its output."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bow.errors import GraphError
from bow.planning.problem.box import Box, volume, whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator

Kind: TypeAlias = Literal["S", "A", "P"]  # sample, attribute, or parameter: splitting the last splits weights


@dataclass(frozen=True)
class Dimension:
    """A dimension of an operator's first output."""

    name: str  # such as `height`
    size: int
    kind: Kind | None  # sample, attribute or parameter; None where it cannot be split


class Rule(ABC):
    """What is true of all operators of a kind, whatever their sizes."""

    kind: str

    is_view: bool = False  # whether the operator computes nothing: it looks at what is there in another way

    @abstractmethod
    def dimensions(self, operator: PlanOperator, graph: OperatorGraph) -> tuple[Dimension, ...]:
        """The dimensions of the first output."""

    @abstractmethod
    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        """By input: what of it a tile reads, halo included; None: nothing."""

    def weight_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        """By weight: what of it a tile reads; tiles that read the same box are replicas that sum their gradients."""
        return tuple(whole(graph.weights[name].shape) for name in operator.weights)

    def output_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        """By output: what of it a tile makes; the first is `box` itself."""
        if len(operator.outputs) > 1:
            raise GraphError(f"the rule of {operator.kind!r} does not say what a tile makes of its other outputs")
        return (box,)

    def flops(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> float:
        """Floating-point operations of a tile's forward pass: its part of the operator's."""
        return operator.flops * volume(box) / max(1, volume(whole(graph.output_shape(operator))))

    def sums(self, operator: PlanOperator) -> tuple[str, ...]:
        """What all tiles have to sum in the middle of the operator, such as batch statistics; most have nothing."""
        return ()

    def sum_box(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> Box:
        """Which part of the sums a tile adds to: tiles with the same part sum with each other, such as of a channel."""
        return ()


class WholeRule(Rule):
    """Of operators without a rule: they stay whole."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def dimensions(self, operator: PlanOperator, graph: OperatorGraph) -> tuple[Dimension, ...]:
        return tuple(Dimension(f"dimension {n}", size, None) for n, size in enumerate(graph.output_shape(operator)))

    def input_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box | None, ...]:
        return tuple(whole(graph.tensors[number].shape) for number in operator.inputs)

    def output_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:
        return tuple(whole(graph.tensors[number].shape) for number in operator.outputs)


class Rules:
    """The rules that are known, by kind."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}

    def register(self, rule: Rule) -> None:
        self._rules[rule.kind] = rule

    def __contains__(self, kind: object) -> bool:
        return kind in self._rules

    def dimensions(self, operator: PlanOperator, graph: OperatorGraph) -> tuple[Dimension, ...]:
        return self.of(operator).dimensions(operator, graph)

    def of(self, operator: PlanOperator) -> Rule:
        """The rule that an operator follows: that of its kind, or that it stays whole."""
        return self._rules.get(operator.kind) or WholeRule(operator.kind)
