import torch

from bow.graph.lowering import drop_dead, renumber, skip_identities
from bow.graph.operator import Operator, Ref, TensorSpec


def _operator(index: int, kind: str, reads: tuple[int, ...], *made: int | None, **more) -> Operator:
    return Operator(index, kind, tuple(map(Ref, reads)), {}, made, "forward", "", **more)


def _specs(*strides: tuple[int, int]) -> dict[int, TensorSpec]:
    return {value: TensorSpec((4, 4), stride, torch.float32) for value, stride in enumerate(strides)}


def test_copies_and_detachments_give_way_to_their_original() -> None:
    operators = [
        _operator(0, "aten.clone.default", (0,), 1),
        _operator(1, "aten.detach.default", (1,), 2, is_view=True),
        _operator(2, "aten.mm.default", (2, 1), 3),
    ]
    kept, instead = skip_identities(operators, _specs(*[(4, 1)] * 4))
    assert instead == {1: 0, 2: 0}
    assert [(operator.kind, operator.reads) for operator in kept] == [("aten.mm.default", (0, 0))]


def test_a_copy_that_changes_the_memory_order_stays() -> None:
    kept, instead = skip_identities([_operator(0, "aten.clone.default", (0,), 1)], _specs((1, 4), (4, 1)))
    assert len(kept) == 1
    assert instead == {}


def test_what_nobody_reads_goes_but_draws_and_checks_stay() -> None:
    operators = [
        _operator(0, "aten.relu.default", (0,), 1),
        _operator(1, "aten.bernoulli.p", (0,), 2, is_random=True),
        _operator(2, "aten._linalg_check_errors.default", (0,), None),
        _operator(3, "aten.tanh.default", (1,), 3),
        _operator(4, "aten.sigmoid.default", (0,), 4),
    ]
    assert [operator.index for operator in drop_dead(operators, {4})] == [1, 2, 4]


def test_numbers_follow_the_order_and_links_follow_the_numbers() -> None:
    operators = [
        _operator(3, "aten.relu.default", (0,), 1),
        _operator(7, "aten.threshold_backward.default", (1,), 2, forward=3),
        _operator(9, "aten.tanh_backward.default", (1,), 3, forward=5),
    ]
    assert [(operator.index, operator.forward) for operator in renumber(operators)] == [(0, None), (1, 0), (2, None)]
