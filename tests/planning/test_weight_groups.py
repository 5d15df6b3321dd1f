"""Which weights travel together, and which devices hold the same part of them."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bow.planning.problem.box import Box
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.simulator.step_model import WeightGroup, replica_bytes, weight_groups
from tests.planning.small_steps import GRAPH

SHAPES = {"a": (3, 4), "b": (5,)}


def graph_of(*operators: tuple[str, ...], frozen: str = "") -> OperatorGraph:
    """A chain of operators that read these weights."""
    chain = tuple(
        PlanOperator(f"op{number}", "linear", (number,), (number + 1,), weights, layer="layer" if number else "")
        for number, weights in enumerate(operators)
    )
    names = {name for weights in operators for name in weights}
    weights = {name: TensorShape(SHAPES.get(name, (2,)), 4, name != frozen) for name in sorted(names)}
    tensors = {number: TensorShape((1, 1)) for number in range(len(operators) + 1)}
    return OperatorGraph(chain, tensors, (0,), weights, len(operators))


def test_weights_that_the_same_operators_read_travel_together() -> None:
    groups = weight_groups(graph_of(("a", "b"), ("c", "d"), ("c", "d"), ("a",)))
    assert [(group.name, group.weights, group.readers) for group in groups] == [
        ("op0", ("a",), (0, 3)),
        ("op0", ("b",), (0,)),
        ("layer", ("c", "d"), (1, 2)),
    ]


def test_frozen_weights_stay_apart() -> None:
    groups = weight_groups(graph_of(("a", "b"), frozen="b"))
    assert [(group.weights, group.trainable) for group in groups] == [(("a",), True), (("b",), False)]


def test_a_layer_is_one_group() -> None:
    assert [group.weights for group in weight_groups(GRAPH)] == [("w1", "b1"), ("w2",)]


def parts(shape: tuple[int, ...]) -> st.SearchStrategy[Box]:
    def interval(size: int) -> st.SearchStrategy[tuple[int, int]]:
        return st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True).map(lambda ends: tuple(sorted(ends)))

    return st.tuples(*map(interval, shape))


@given(
    st.dictionaries(
        st.tuples(parts(SHAPES["a"]), parts(SHAPES["b"])), st.sets(st.integers(0, 4), min_size=1), min_size=1
    )
)
def test_every_element_is_counted_for_the_devices_that_hold_it(holdings: dict[tuple[Box, ...], set[int]]) -> None:
    graph = graph_of(("a", "b"))
    expected: Counter[tuple[int, ...]] = Counter()
    for number, shape in enumerate(SHAPES.values()):
        for element in itertools.product(*map(range, shape)):
            holders = {
                device
                for part, devices in holdings.items()
                if all(start <= place < end for place, (start, end) in zip(element, part[number], strict=True))
                for device in devices
            }
            expected[tuple(sorted(holders))] += 4
    del expected[()]
    assert replica_bytes(graph, WeightGroup("", ("a", "b"), (0,), True), holdings) == expected
