"""What tiles read and make, as their rules say it."""

from __future__ import annotations

from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.problem.partition import Tilings
from tests.planning.random_steps import RULES
from tests.planning.small_steps import FIRST, GRAPH

PAIR = TensorShape((4, 6))


def chain(*kinds: str) -> OperatorGraph:
    operators = tuple(
        PlanOperator(f"{kind}{number}", kind, (number,), (number + 1,), ("w",) if kind == "norm" else ())
        for number, kind in enumerate(kinds)
    )
    tensors = {number: PAIR for number in range(len(kinds) + 1)}
    weights = {"w": TensorShape((6,))} if "norm" in kinds else {}
    return OperatorGraph(operators, tensors, (0,), weights, len(kinds))


def test_tiles_say_what_they_read_and_make() -> None:
    tiling = Tilings(GRAPH, RULES).of(FIRST, (2, 1))
    assert tiling.boxes == (((0, 2), (0, 6)), ((2, 4), (0, 6)))
    assert tiling.outputs == (tiling.boxes,)
    assert tiling.inputs == ((((0, 2), (0, 3)), ((2, 4), (0, 3))),)
    assert tiling.weights == ((((0, 6), (0, 3)), ((0, 6),)),) * 2
    assert tiling.output_bytes == tiling.gradient_bytes == (48, 48)
    assert (tiling.num_tiles, tiling.sums) == (2, ())


def test_operators_that_are_alike_share_their_tilings() -> None:
    tilings = Tilings(chain("add", "add", "window"), RULES)
    assert tilings.of(0, (2, 1)) is tilings.of(1, (2, 1))
    assert tilings.of(0, (2, 1)) is not tilings.of(2, (2, 1))
    assert tilings.signature_ids == (0, 0, 1)


def test_tiles_of_a_channel_sum_with_each_other() -> None:
    tiling = Tilings(chain("norm"), RULES).of(0, (2, 2))
    assert tiling.sums == (0, 1, 0, 1)
    assert tiling.sum_bytes == (2 * 3 * 4, 2 * 3 * 4)


def test_a_view_takes_no_memory() -> None:
    tiling = Tilings(chain("view"), RULES).of(0, (1, 1))
    assert (tiling.output_bytes, tiling.gradient_bytes) == ((0,), (96,))
