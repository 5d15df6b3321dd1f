"""Which splits are legal, and what is said of those that are not."""

from __future__ import annotations

import dataclasses

import pytest

from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.problem.partition import Split, everything_on, tiles_of, why_invalid
from bow.planning.rules import RULES

LINEAR = PlanOperator("hidden", "linear", (0,), (1,), ("weight",))
OWN = PlanOperator("own", "mine.own.default", (1,), (2,))
GRAPH = OperatorGraph(
    (LINEAR, OWN),
    {0: TensorShape((8, 6)), 1: TensorShape((8, 4)), 2: TensorShape(())},
    (0,),
    {"weight": TensorShape((4, 6))},
    2,
)


def test_every_degree_up_to_the_size_is_legal() -> None:
    for degrees in ((1, 1), (8, 1), (3, 4), (5, 3)):
        tiles = degrees[0] * degrees[1]
        split = Split(degrees, tuple(number % 3 for number in range(tiles)))
        assert why_invalid(GRAPH, LINEAR, split, 3, RULES) is None
        assert split.num_tiles == tiles == len(list(tiles_of(GRAPH, LINEAR, split)))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Split((1,), (0,)), "operator 'hidden' has 2 dimensions, got 1 degrees; give one for each"),
        (Split((0, 1), ()), "a degree must be at least 1, got 0 for sample of operator 'hidden'"),
        (Split((9, 1), (0,) * 9), "operator 'hidden' has a sample of 8, got degree 9; give at most 8"),
        (Split((2, 1), (0,)), "operator 'hidden' is split into 2 tiles, got 1 devices; give one for each"),
        (Split((2, 1), (0, 3)), r"operator 'hidden' has a tile on device 3, and there are 3 \(0 to 2\)"),
    ],
    ids=["dimensions", "zero", "large", "devices", "device"],
)
def test_what_is_not_legal_is_said_in_a_sentence(split: Split, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(why_invalid(GRAPH, LINEAR, split, 3, RULES))


def test_an_operator_without_a_rule_stays_whole() -> None:
    graph = dataclasses.replace(GRAPH, tensors={**GRAPH.tensors, 2: TensorShape((8,))})
    assert why_invalid(graph, OWN, Split((1,), (2,)), 3, RULES) is None
    found = why_invalid(graph, OWN, Split((2,), (0, 1)), 3, RULES)
    assert found == "operator 'own' (mine.own.default) cannot be split by dimension 0, got degree 2; give 1"
    rule = RULES.of(OWN)
    assert rule.input_boxes(OWN, graph, ((0, 8),)) == (((0, 8), (0, 4)),)
    assert rule.output_boxes(OWN, graph, ((0, 8),)) == (((0, 8),),)


def test_everything_on_a_device_is_legal() -> None:
    splits = everything_on(GRAPH, 2)
    for operator, split in zip(GRAPH.operators, splits, strict=True):
        assert why_invalid(GRAPH, operator, split, 3, RULES) is None
    assert [split.devices for split in splits] == [(2,), (2,)]
