"""Guessed changes: legal, of whole families or regions, and able to reach everything."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bow.planning.problem.partition import Split, everything_on, why_invalid
from bow.planning.rules import RULES
from bow.planning.search.proposals import GuidedProposals, families_of
from bow.planning.search.search_space import SplitSpace
from tests.planning.search_graphs import branches, language_model, lenet, perceptron

GRAPHS = {"lenet": lenet(), "branches": branches(), "language": language_model(steps=4)}


@settings(max_examples=30)
@given(st.sampled_from(sorted(GRAPHS)), st.integers(2, 9), st.randoms(use_true_random=False))
def test_changes_are_legal_and_of_the_space(name: str, num_devices: int, source: random.Random) -> None:
    graph = GRAPHS[name]
    space = SplitSpace(graph, RULES, num_devices)
    proposals, splits = GuidedProposals(space, graph, source), list(everything_on(graph))
    for _ in range(20):
        changes = proposals.draw(splits)
        assert len(dict(changes)) == len(changes)
        for operator, split in changes:
            assert split != splits[operator]
            assert space.contains(operator, split)
            assert why_invalid(graph, graph.operators[operator], split, num_devices, RULES) is None
            splits[operator] = split


def test_families_change_as_often_as_single_operators_of_their_own() -> None:
    graph = language_model(steps=8)
    space, source = SplitSpace(graph, RULES, 4), random.Random(3)
    proposals, splits = GuidedProposals(space, graph, source), everything_on(graph)
    names = [operator.name for operator in graph.operators]
    cells = {number for number, operator in enumerate(graph.operators) if operator.layer == "lstm0"}
    scores = next(number for number, name in enumerate(names) if name.startswith("linear"))
    counts: Counter[str] = Counter()
    for _ in range(2000):
        changed = {operator for operator, _ in proposals.draw(splits)}
        counts["cells together"] += cells <= changed
        counts["scores"] += scores in changed
        counts["one cell"] += len(changed & cells) == 1
        counts["several families"] += cells <= changed and len(changed) > len(cells)
    assert counts["cells together"] > 100
    assert counts["scores"] < 4 * counts["cells together"]  # though there are eight cells, and one layer of scores
    assert counts["one cell"] > 50
    assert counts["several families"] > 50


def test_what_shares_devices_moves_together_along_the_same_dimensions() -> None:
    graph = perceptron(samples=64, sizes=(64, 64, 64))
    space, source = SplitSpace(graph, RULES, 8), random.Random(5)
    proposals = GuidedProposals(space, graph, source)
    ranks = [space.rank(operator) for operator in range(space.num_operators)]
    # By turns along the first and the last dimension.
    halves = [[2, *[1] * (rank - 1)][:: (-1) ** number] for number, rank in enumerate(ranks)]
    splits = [Split(tuple(each), (0, 1)) if rank else Split((), (0,)) for each, rank in zip(halves, ranks, strict=True)]
    drawn = [proposals.draw(splits) for _ in range(3000)]
    together = [changes for changes in drawn if len(changes) == sum(rank > 0 for rank in ranks)]
    moved = [changes for changes in together if len({split.devices for _, split in changes}) == 1]
    assert {len(changes[0][1].devices) for changes in moved} >= {1, 2, 4, 8}
    of_four = [changes for changes in moved if len(changes[0][1].devices) == 4]
    wanted = [tuple(4 if degree == 2 else 1 for degree in splits[operator].degrees) for operator, _ in of_four[0]]
    assert sum([split.degrees for _, split in changes] == wanted for changes in of_four) > 10


def test_the_operator_is_often_one_that_the_end_waits_for() -> None:
    graph = branches()
    space = SplitSpace(graph, RULES, 4)
    proposals = GuidedProposals(space, graph, random.Random(2), critical=lambda: 1)
    without = GuidedProposals(space, graph, random.Random(2))
    splits = everything_on(graph)
    drawn = [sum(1 in dict(each.draw(splits)) for _ in range(1000)) for each in (proposals, without)]
    assert drawn[0] > 1.2 * drawn[1]


def test_every_split_of_an_operator_is_reached() -> None:
    graph = perceptron(samples=2, sizes=(4, 2, 2))
    space, source = SplitSpace(graph, RULES, 2), random.Random(1)
    proposals, splits = GuidedProposals(space, graph, source), everything_on(graph)
    seen = {change for _ in range(4000) for change in proposals.draw(splits)}
    wanted = {
        (operator, split)
        for operator in range(space.num_operators)
        for split in space.splits(operator)
        if split != splits[operator]
    }
    assert seen == wanted


def test_nothing_changes_where_there_is_one_device() -> None:
    graph = perceptron()
    space = SplitSpace(graph, RULES, 1)
    proposals = GuidedProposals(space, graph, random.Random(1))
    assert all(proposals.draw(everything_on(graph)) == () for _ in range(10))


@pytest.mark.parametrize("name", GRAPHS)
def test_families_divide_the_operators(name: str) -> None:
    graph = GRAPHS[name]
    for way in families_of(graph):
        assert all(operator in family for operator, family in enumerate(way))
        assert sum(1 / len(family) for family in way) == pytest.approx(len(set(map(tuple, way))))
