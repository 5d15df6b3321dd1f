"""Groups: what they hold, what crosses between them, and which operators are put together."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import GraphError
from bow.planning.placement.groups import Flow, Group, Groups, merge_sole_readers, module_groups
from tests.planning.placement.placed_steps import every_operator, made_of, unrolled
from tests.planning.random_steps import random_graph

DIAMOND = made_of(
    ("start", "x", ["batch"]), ("left", "x", ["start"]), ("right", "x", ["start"]), ("end", "x", ["left", "right"])
)


def groups_of(graph, *members: tuple[int, ...]) -> Groups:
    return Groups(graph, tuple(Group(f"g{n}", "x", each) for n, each in enumerate(members)))


def names(groups: Groups) -> list[list[str]]:
    return [[groups.graph.operators[n].name for n in group.operators] for group in groups.groups]


def kinds(groups: Groups) -> dict[str, int]:
    return Counter(group.kind for group in groups.groups)


def test_a_tensor_crosses_once_for_each_group_that_reads_it_and_its_gradient_comes_back():
    groups = groups_of(DIAMOND, (0,), (1, 2), (3,))
    assert groups.flows == (Flow(0, 1, 2048), Flow(1, 2, 4096))
    assert sum(flow.num_bytes for flow in groups.flows) == 6144
    assert groups.shapes(1) == ((256,), (256,))
    assert groups.shapes(2) == ((256,),)  # nobody reads the loss


def test_the_batch_crosses_nowhere_and_has_no_gradient():
    assert groups_of(DIAMOND, (0, 1, 2, 3)).flows == ()


def test_circles_are_found_and_matter_only_where_an_order_is_asked_for():
    groups = groups_of(DIAMOND, (0, 3), (1,), (2,))
    assert len(groups.splits((0, 1, 1))) == 4
    with pytest.raises(GraphError, match="dependency cycle"):
        _ = groups.order


def test_a_placement_is_splits_of_degrees_one():
    groups = groups_of(DIAMOND, (0, 1), (2, 3))
    splits = groups.splits((2, 1))
    assert [split.devices for split in splits] == [(2,), (2,), (1,), (1,)]
    assert {split.num_tiles for split in splits} == {1}


def test_operations_are_what_a_policy_needs():
    operations = groups_of(DIAMOND, (0,), (1, 2), (3,)).operations(3)
    assert operations.edges == ((0, 1), (1, 2))
    assert operations.num_devices == 3


def test_without_anchors_a_graph_with_one_end_becomes_one_group():
    assert len(merge_sole_readers(every_operator(unrolled()), lambda group: False)) == 1


def test_what_has_weights_stays_apart_and_the_rest_goes_with_its_sole_reader():
    graph = made_of(
        ("pad", "x", ["batch"]),
        ("first", "linear", ["pad"]),
        ("norm", "batch_norm", ["first"]),
        ("relu", "x", ["norm"]),
        ("second", "linear", ["relu"]),
        ("third", "linear", ["relu"]),
        ("sum", "x", ["second", "third"]),
    )
    merged = merge_sole_readers(every_operator(graph))
    assert names(merged) == [["pad", "first", "norm", "relu"], ["third"], ["second", "sum"]]
    assert [group.name for group in merged.groups] == ["first", "third", "second"]


@given(st.integers(0, 10_000))
def test_merging_ends_where_nothing_can_be_merged_and_makes_no_circle(seed):
    graph = random_graph(random.Random(seed), most=12)
    anchored = {operator.name for operator in graph.operators if operator.weights}
    is_anchored = lambda group: any(graph.operators[n].name in anchored for n in group.operators)  # noqa: E731
    merged = merge_sole_readers(every_operator(graph), is_anchored)
    assert len(merged.order) == len(merged)
    assert merged.order == tuple(range(len(merged)))
    readers: dict[int, set[int]] = {}
    for flow in merged.flows:
        readers.setdefault(flow.maker, set()).add(flow.reader)
    for maker, those in readers.items():
        if len(those) == 1:
            assert is_anchored(merged.groups[maker])
            assert is_anchored(merged.groups[min(those)])


def test_an_unrolled_network_has_a_group_for_each_lookup_cell_and_prediction():
    groups = module_groups(unrolled(steps=4, layers=2))
    assert kinds(groups) == {"embedding": 4, "lstm_cell": 8, "softmax": 4}
    assert len(groups.order) == len(groups)
    cells = [group for group in groups.groups if group.kind == "lstm_cell"]
    assert {group.layer for group in cells} == {"lstm.cells.0", "lstm.cells.1"}
    assert ["output@2", "loss.cross@2"] in names(groups)


def test_a_step_of_attention_is_a_group_and_what_it_does_once_is_another():
    graph = made_of(
        ("attention.key", "linear", ["batch"]),
        *(
            operator
            for step, call in enumerate(("", "@1", "@2"))
            for operator in (
                (f"attention.query{call}", "linear", ["batch"]),
                (f"attention.add{f'@{2 * step}' if step else ''}", "x", [f"attention.query{call}", "attention.key"]),
                (f"attention.add@{2 * step + 1}", "x", [f"attention.add{f'@{2 * step}' if step else ''}"]),
                (f"output{call}", "linear", [f"attention.add@{2 * step + 1}"]),
            )
        ),
        ("end", "x", ["output", "output@1", "output@2"]),
    )
    groups = module_groups(graph)
    assert ["attention.key"] in names(groups)
    assert ["attention.query@1", "attention.add@2", "attention.add@3"] in names(groups)
    assert kinds(groups) == {"attention": 4, "softmax": 3}


def test_a_branch_is_a_group_with_all_branches_within_it():
    graph = made_of(
        ("stem.conv", "conv2d", ["batch"]),
        ("mixed.0.conv", "conv2d", ["stem.conv"]),
        ("mixed.1.0.conv", "conv2d", ["stem.conv"]),
        ("mixed.1.1.0.conv", "conv2d", ["mixed.1.0.conv"]),
        ("mixed.1.1.1.conv", "conv2d", ["mixed.1.0.conv"]),
        ("mixed.1.1.cat", "concat", ["mixed.1.1.0.conv", "mixed.1.1.1.conv"]),
        ("mixed.2", "max_pool2d", ["stem.conv"]),
        ("mixed.cat", "concat", ["mixed.0.conv", "mixed.1.1.cat", "mixed.2"]),
        ("loss.cat", "concat", ["mixed.cat"]),
        ("loss.sum", "x", ["loss.cat"]),
    )
    groups = module_groups(graph)
    branches = {group.name: len(group.operators) for group in groups.groups if group.kind == "branch"}
    assert branches.keys() == {"mixed.0", "mixed.1", "mixed.2"}
    assert branches["mixed.1"] >= 4
    assert len(groups) == 4
