"""What rules say of boxes; whether it is true, tests/planning/tiles finds out by numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import GraphError
from bow.planning.problem.box import Box, contains, volume, whole
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.rules import RULES, shipped_rules
from bow.planning.rules.rule import Rule, Rules, WholeRule
from bow.planning.rules.views import PointwiseRule


def graph_of(
    kind: str, inputs: list[tuple[int, ...]], weights: list[tuple[int, ...]], output: tuple[int, ...], **attributes: Any
) -> tuple[OperatorGraph, PlanOperator]:
    names = tuple(f"weight {number}" for number in range(len(weights)))
    made = len(inputs)
    operator = PlanOperator("it", kind, tuple(range(made)), (made,), names, attributes, flops=float(math.prod(output)))
    tensors = {number: TensorShape(shape) for number, shape in enumerate([*inputs, output])}
    shapes = {name: TensorShape(shape) for name, shape in zip(names, weights, strict=True)}
    return OperatorGraph((operator,), tensors, tuple(range(made)), shapes, made), operator


CONVOLUTION = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
POOLING = {"kernel": [3], "stride": [2], "padding": [1], "dilation": [1]}

TABLE_1 = [
    ("max_pool1d", [(8, 4, 16)], [], (8, 4, 8), POOLING, "S sample, A channel, A length"),
    ("conv1d", [(8, 4, 16)], [(6, 4, 1)], (8, 6, 16), CONVOLUTION, "S sample, P channel, A length"),
    ("conv2d", [(8, 4, 16, 9)], [(6, 4, 3, 3)], (8, 6, 16, 9), CONVOLUTION, "S sample, P channel, A height, A width"),
    ("linear", [(8, 4)], [(6, 4)], (8, 6), {}, "S sample, P channel"),
    ("lstm_cell", [(8, 4), (8, 6), (8, 6)], [(4, 6, 4), (4, 6, 6)], (8, 6), {}, "S sample, P unit"),
    ("embedding", [(8, 5)], [(100, 6)], (8, 5, 6), {}, "S sample, A dimension 1, P channel"),
    ("batch_norm", [(8, 6, 4)], [(6,), (6,)], (8, 6, 4), {}, "S sample, P channel, A length"),
    ("layer_norm", [(8, 6, 4)], [(4,)], (8, 6, 4), {"num_dims": 1}, "S sample, A dimension 1, - dimension 2"),
    ("softmax", [(8, 6)], [], (8, 6), {"dim": 1}, "S sample, - dimension 1"),
    ("matmul", [(3, 8, 4), (3, 4, 6)], [], (3, 8, 6), {"sample": 1}, "A dimension 0, S sample, A column"),
    ("pointwise", [(8, 6), (6,)], [], (8, 6), {}, "S sample, A dimension 1"),
    ("attention", [(8, 2, 5, 4)] * 3, [], (8, 2, 5, 4), {}, "S sample, A head, A query, A channel"),
]


@pytest.mark.parametrize(
    ("kind", "inputs", "weights", "output", "attributes", "expected"), TABLE_1, ids=lambda v: str(v)[:12]
)
def test_dimensions_are_those_of_the_papers_table(
    kind: str, inputs: Any, weights: Any, output: tuple[int, ...], attributes: dict[str, Any], expected: str
) -> None:
    if kind == "conv1d":
        attributes = {name: value[:1] if isinstance(value, list) else value for name, value in attributes.items()}
    graph, operator = graph_of(kind, inputs, weights, output, **attributes)
    found = RULES.dimensions(operator, graph)
    assert ", ".join(f"{each.kind or '-'} {each.name}" for each in found) == expected
    assert tuple(each.size for each in found) == output


def test_a_convolutions_tile_reads_its_halo() -> None:
    graph, operator = graph_of("conv2d", [(2, 4, 8, 8)], [(6, 4, 3, 3), (6,)], (2, 6, 8, 8), **CONVOLUTION)
    box: Box = ((0, 1), (2, 4), (4, 8), (2, 5))
    rule = RULES.of(operator)
    assert rule.input_boxes(operator, graph, box) == (((0, 1), (0, 4), (3, 8), (1, 6)),)
    assert rule.weight_boxes(operator, graph, box) == (((2, 4), (0, 4), (0, 3), (0, 3)), ((2, 4),))
    assert rule.flops(operator, graph, box) == volume(box)


def test_a_grouped_convolution_reads_the_groups_it_needs() -> None:
    settings = {**CONVOLUTION, "groups": 3}
    graph, operator = graph_of("conv2d", [(2, 6, 8, 8)], [(9, 2, 3, 3)], (2, 9, 8, 8), **settings)
    ((_, channels, *_),) = RULES.of(operator).input_boxes(operator, graph, ((0, 2), (2, 4), (0, 8), (0, 8)))  # type: ignore[misc]
    assert channels == (0, 4)


def test_concatenation_reads_only_what_it_shows() -> None:
    graph, operator = graph_of("concat", [(2, 3), (2, 4), (2, 5)], [], (2, 12), dim=1)
    assert RULES.of(operator).input_boxes(operator, graph, ((0, 1), (5, 8))) == (
        None,
        ((0, 1), (2, 4)),
        ((0, 1), (0, 1)),
    )


def test_a_stack_reads_only_what_it_shows() -> None:
    graph, operator = graph_of("stack", [(2, 3)] * 3, [], (2, 3, 3), dim=1)
    assert RULES.of(operator).input_boxes(operator, graph, ((0, 1), (1, 2), (0, 2))) == (None, ((0, 1), (0, 2)), None)


def test_weights_may_stand_before_inputs() -> None:
    graph, operator = graph_of("pointwise", [(8, 6)], [(6,)], (8, 6), operands=["weight", "input"])
    rule = RULES.of(operator)
    assert [each.kind for each in rule.dimensions(operator, graph)] == ["S", "P"]
    assert rule.weight_boxes(operator, graph, ((0, 4), (2, 4))) == (((2, 4),),)
    assert rule.input_boxes(operator, graph, ((0, 4), (2, 4))) == (((0, 4), (2, 4)),)


def test_tiles_of_a_channel_sum_with_each_other() -> None:
    graph, operator = graph_of("batch_norm", [(8, 6, 4)], [(6,), (6,)], (8, 6, 4))
    rule = RULES.of(operator)
    assert rule.sums(operator) == ("mean", "variance")
    assert rule.sum_box(operator, graph, ((0, 4), (3, 6), (0, 4))) == ((3, 6),)
    graph, operator = graph_of("linear", [(8, 4)], [(6, 4)], (8, 6))
    assert RULES.of(operator).sums(operator) == ()


factors = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Box]:
    """Two shapes of the same elements, and a box of the second."""
    numbers = draw(factors)

    def grouped() -> tuple[int, ...]:
        cuts = sorted(draw(st.sets(st.integers(1, max(1, len(numbers) - 1)), max_size=3)) & set(range(1, len(numbers))))
        parts = zip([0, *cuts], [*cuts, len(numbers)], strict=True)
        return tuple(math.prod(numbers[a:b]) for a, b in parts)

    one, other = grouped(), draw(st.just(None).flatmap(lambda _: st.builds(grouped)))
    starts = [draw(st.integers(0, size - 1)) for size in other]
    ends = [draw(st.integers(start + 1, size)) for start, size in zip(starts, other, strict=True)]
    return one, other, tuple(zip(starts, ends, strict=True))


@given(reshapes())
def test_a_reshape_reads_a_box_that_holds_what_it_makes(drawn: tuple[tuple[int, ...], tuple[int, ...], Box]) -> None:
    before, behind, box = drawn
    graph, operator = graph_of("reshape", [before], [], behind)
    numbers = np.arange(math.prod(before))
    wanted = numbers.reshape(behind)[tuple(slice(*side) for side in box)]
    places = np.nonzero(np.isin(numbers.reshape(before), wanted))
    smallest = tuple((int(of.min()), int(of.max()) + 1) for of in places)
    (read,) = RULES.of(operator).input_boxes(operator, graph, box)
    assert read is not None
    assert contains(read, smallest)
    if volume(smallest) == wanted.size:  # a box of one shape that is a box of the other, too
        assert read == smallest


def test_every_kind_has_one_rule() -> None:
    kinds = [rule.kind for rule in shipped_rules()]
    assert len(kinds) == len(set(kinds))
    assert all(kind in RULES for kind in kinds)
    assert {rule.kind for rule in shipped_rules() if rule.is_view} == {
        "reshape",
        "permute",
        "expand",
        "slice",
        "select",
    }


def test_a_rule_takes_the_place_of_another() -> None:
    rules, operator = Rules(), PlanOperator("it", "sinc", (), ())
    assert isinstance(rules.of(operator), WholeRule)
    rules.register(PointwiseRule("sinc"))
    rules.register(other := PointwiseRule("sinc"))
    assert rules.of(operator) is other


def test_a_rule_has_to_speak_of_all_outputs() -> None:
    class Half(PointwiseRule):
        output_boxes = Rule.output_boxes

    graph, operator = graph_of("it", [(4,)], [], (4,))
    two = OperatorGraph((PlanOperator("it", "it", (0,), (1, 2)),), {**graph.tensors, 2: TensorShape((4,))}, (0,), {}, 1)
    with pytest.raises(GraphError, match="does not define the boxes of its other outputs; override output_boxes"):
        Half("it").output_boxes(two.operators[0], two, whole((4,)))
    assert operator.kind == "it"
