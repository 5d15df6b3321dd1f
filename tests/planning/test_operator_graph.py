"""Operator graphs as plain data."""

from __future__ import annotations

import dataclasses
import json

from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape

FIRST = PlanOperator("first", "linear", (0,), (1,), ("weight",))
SECOND = PlanOperator("second", "reduction", (1,), (2,), attributes={"dims": [0, 1], "keepdim": False})
TENSORS = {0: TensorShape((8, 6), differentiable=False), 1: TensorShape((8, 4)), 2: TensorShape(())}
GRAPH = OperatorGraph((FIRST, SECOND), TENSORS, (0,), {"weight": TensorShape((4, 6))}, 2)


def test_makers_are_where_tensors_come_from() -> None:
    assert GRAPH.makers == {1: (0, 0), 2: (1, 0)}
    assert GRAPH.output_shape(FIRST) == (8, 4)


def test_a_hash_is_that_of_the_whole_graph() -> None:
    again = OperatorGraph((FIRST, SECOND), dict(TENSORS), (0,), {"weight": TensorShape((4, 6))}, 2)
    assert GRAPH.hash == again.hash
    others = [
        dataclasses.replace(GRAPH, operators=(FIRST, dataclasses.replace(SECOND, attributes={"dims": [0]}))),
        dataclasses.replace(GRAPH, tensors={**TENSORS, 0: TensorShape((9, 6))}),
        dataclasses.replace(GRAPH, weights={"weight": TensorShape((4, 6), itemsize=2)}),
    ]
    assert len({GRAPH.hash, *(other.hash for other in others)}) == 4


def test_json_says_what_it_is() -> None:
    data = json.loads(GRAPH.to_json())
    assert (data["format"], data["version"], data["loss"]) == ("bow operator graph", 1, 2)
    assert data["operators"][1]["attributes"] == {"dims": [0, 1], "keepdim": False}
