from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split, why_invalid
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.search.search_space import SplitSpace, device_lists
from tests.planning.search_graphs import branches, language_model, lenet, perceptron

GRAPHS = {"perceptron": perceptron(), "lenet": lenet(), "branches": branches(), "language": language_model()}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 8, 12])
def test_every_split_is_legal_and_stands_once(name: str, num_devices: int) -> None:
    graph = GRAPHS[name]
    space = SplitSpace(graph, RULES, num_devices)
    for number, operator in enumerate(graph.operators):
        splits = list(space.splits(number))
        assert len(splits) == space.count(number) == len(set(splits))
        assert all(why_invalid(graph, operator, split, num_devices, RULES) is None for split in splits)
        assert all(space.contains(number, split) for split in splits)


def test_two_devices_have_all_lists_and_four_all_without_repetition() -> None:
    assert set(device_lists((2,), 2)) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert len(set(device_lists((3,), 4))) == 24
    assert all(len(set(devices)) == 3 for devices in device_lists((3,), 4))
    assert len(device_lists((2, 2), 4, "every")) == 4**4


@pytest.mark.parametrize("num_devices", [8, 16, 64])
def test_many_devices_have_neighbours_one_of_each_node_and_both_orders(num_devices: int) -> None:
    lists = device_lists((4, 2), num_devices)
    per_node = num_devices // 8
    assert tuple(range(8)) in lists
    assert tuple(range(0, num_devices, per_node)) in lists
    assert (0, 4, 1, 5, 2, 6, 3, 7) in lists  # columns first
    assert len(lists) == len(set(lists))


def test_even_space_has_no_unequal_tiles() -> None:
    graph = perceptron(samples=6)
    even, any_size = (SplitSpace(graph, RULES, 4, even=only) for only in (True, False))
    degrees = {split.degrees for split in even.splits(0)}
    assert (4, 1) not in degrees
    assert {(1, 1), (2, 1), (3, 1), (1, 4), (2, 2)} <= degrees
    assert (4, 1) in {split.degrees for split in any_size.splits(0)}


def test_included_strategy_is_in_the_space() -> None:
    graph = perceptron()
    whole = tuple(Split((1,) * len(graph.output_shape(each)), (0,)) for each in graph.operators)
    odd = (Split((4, 1), (3, 3, 1, 1)), *whole[1:])
    without, within = SplitSpace(graph, RULES, 4), SplitSpace(graph, RULES, 4, including=[odd, odd])
    assert not without.contains(0, odd[0])
    assert within.contains(0, odd[0])
    assert within.count(0) == without.count(0) + 1
    assert list(within.splits(0)).count(odd[0]) == 1
    parallel = data_parallel(graph, RULES, 4)
    assert SplitSpace(graph, RULES, 4, including=[parallel]).num_partitions == without.num_partitions


def test_every_split_is_drawn_equally_often() -> None:
    space, source = SplitSpace(perceptron(), RULES, 2), random.Random(1)
    counts = Counter(space.draw(0, source) for _ in range(5000))
    assert set(counts) == set(space.splits(0))
    expected = 5000 / space.count(0)
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 27.9  # chi-square, 9 degrees, 0.1 %


@given(st.sampled_from(sorted(GRAPHS)), st.integers(1, 9), st.randoms(use_true_random=False))
def test_drawn_splits_are_near_what_was_asked_for(name: str, num_devices: int, source: random.Random) -> None:
    space = SplitSpace(GRAPHS[name], RULES, num_devices)
    for operator in range(space.num_operators):
        some = space.draw(operator, source)
        alike = space.draw_with_degrees(operator, some.degrees, source)
        there = space.draw_on_devices(operator, some.devices, source)
        assert alike is not None
        assert there is not None
        assert alike.degrees == some.degrees
        assert set(there.devices) == set(some.devices)
        assert space.contains(operator, alike)
        assert space.contains(operator, there)


def test_what_is_not_there_is_not_drawn() -> None:
    space, source = SplitSpace(perceptron(), RULES, 4), random.Random(1)
    assert space.draw_with_degrees(0, (7, 1), source) is None
    assert space.draw_on_devices(0, (9,), source) is None


def test_operator_without_rule_stays_whole_on_any_device() -> None:
    graph: OperatorGraph = perceptron()
    splits = list(SplitSpace(graph, RULES, 3).splits(len(graph.operators) - 1))
    assert splits == [Split((), (device,)) for device in range(3)]
