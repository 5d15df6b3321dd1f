"""Operators that are likely to want the same split: the steps of a layer, and what follows an operator in its shape."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator

Families: TypeAlias = Sequence[Sequence[int]]
"""By operator: the operators of its family, itself among them."""

FLOPS_PER_OUTPUT = 32
"""An operator with more than this computes so much for each result that it may want a split of its own."""


def families_of(graph: OperatorGraph) -> list[Families]:
    """Ways to divide operators into families, without those in which every family is one operator.

    * Roles: the operators of a layer, which share their weights; and those without weights that are alike and read of
      the same roles, as the softmax of each step of an unrolled attention does.
    * Chains: a convolution or another operator that computes much, and what follows it in the same shape, such as
      normalisation and activation.
    * The closure of both.

    Example:
        >>> from bow.planning.problem.operator_graph import TensorShape
        >>> tensors = {number: TensorShape((8, 4)) for number in range(5)}
        >>> cells = [PlanOperator(f"cell{step}", "cell", (step,), (step + 2,), layer="lstm") for step in (0, 1)]
        >>> graph = OperatorGraph((*cells, PlanOperator("tanh", "pointwise", (3,), (4,))), tensors, (0, 1), {}, 4)
        >>> families_of(graph)
        [[[0, 1], [0, 1], [2]], [[0], [1, 2], [1, 2]], [[0, 1, 2], [0, 1, 2], [0, 1, 2]]]
    """
    count = len(graph.operators)
    first: dict[str, int] = {}
    roles = [(number, first.setdefault(role, number)) for number, role in enumerate(_roles(graph))]
    chains = list(_followed(graph))
    ways = [_joined(roles, count), _joined(chains, count), _joined([*roles, *chains], count)]
    return [
        way for number, way in enumerate(ways) if any(len(family) > 1 for family in way) and way not in ways[:number]
    ]


def _roles(graph: OperatorGraph) -> list[str]:
    makers = graph.makers
    numbers: dict[str, int] = {}
    roles: list[str] = []
    for operator in graph.operators:
        read = sorted({roles[makers[tensor]] for tensor in operator.inputs if tensor in makers})
        if operator.weights or operator.layer not in ("", operator.name):
            role = f"layer {operator.layer or operator.name} {operator.kind}"
        elif read:
            role = f"{operator.kind} {graph.output_shape(operator)} {read}"
        else:
            role = operator.name
        roles.append(f"role {numbers.setdefault(role, len(numbers))}")
    return roles


def _followed(graph: OperatorGraph) -> Iterable[tuple[int, int]]:
    """Operators that follow another one in its shape, and that one."""
    makers = graph.makers
    for number, operator in enumerate(graph.operators):
        maker = next((makers[tensor] for tensor in operator.inputs if tensor in makers), None)
        if maker is None or not _is_light(graph, operator):
            continue
        if graph.output_shape(operator) == graph.output_shape(graph.operators[maker]):
            yield number, maker


def _is_light(graph: OperatorGraph, operator: PlanOperator) -> bool:
    return operator.flops <= FLOPS_PER_OUTPUT * math.prod(graph.output_shape(operator))


def _joined(pairs: Iterable[tuple[int, int]], count: int) -> list[list[int]]:
    """By operator, all that pairs join with it."""
    leaders = [*range(count)]

    def leader(number: int) -> int:
        while leaders[number] != number:
            leaders[number] = leaders[leaders[number]]
            number = leaders[number]
        return number

    for one, other in pairs:
        leaders[leader(one)] = leader(other)
    members: dict[int, list[int]] = defaultdict(list)
    for number in range(count):
        members[leader(number)].append(number)
    return [members[leader(number)] for number in range(count)]
