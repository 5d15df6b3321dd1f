"""LSTM cells."""

from collections.abc import Sequence
from typing import Any

from bow.planning.problem.box import Box
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.rules.mapped import MappedRule, Shapes
from bow.planning.rules.sides import Along, Side, Whole


class LSTMCellRule(MappedRule):
    """One step of an LSTM: split by sample (S) and by unit (P).

    Operands: inputs `[sample, in]`, hidden state and cell state `[sample, unit]`, weights `[4, unit, in]` and
    `[4, unit, unit]`, and two biases `[4, unit]` or none; the gates' rows of a unit so lie in one box. Outputs: both
    states.
    """

    def sides(self, attributes: Any, shapes: Shapes) -> Sequence[Sequence[Side]]:  # noqa: D102
        read: list[Side] = [Along(0), Whole()]
        weight: list[Side] = [Whole(), Along(1), Whole()]
        biases: list[list[Side]] = [[Whole(), Along(1)] for _ in shapes.operands[5:]]
        return [read, read, [Along(0), Along(1)], weight, weight, *biases]

    def names(self, rank: int) -> Sequence[str]:  # noqa: D102
        return ["sample", "unit"]

    def output_boxes(self, operator: PlanOperator, graph: OperatorGraph, box: Box) -> tuple[Box, ...]:  # noqa: D102
        return box, box
