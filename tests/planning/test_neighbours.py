"""Strategies that differ in one operator."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from bow.planning.problem.partition import Split, everything_on
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search.metropolis import Limits, descend
from bow.planning.search.search_space import SplitSpace
from tests.planning.search_graphs import SlowSimulation, model_of, perceptron

PAIR = load_topology("two_cores")
GRAPH = perceptron(samples=8, sizes=(1024, 512, 256))
MODEL = model_of(GRAPH, PAIR)
SPACE = SplitSpace(GRAPH, RULES, 2, devices="distinct", even=True)
ALONE = everything_on(GRAPH)


def times_around(splits: tuple[Split, ...]) -> list[int]:
    return [
        SlowSimulation(MODEL, (*splits[:operator], split, *splits[operator + 1 :])).makespan_ns
        for operator in range(SPACE.num_operators)
        for split in SPACE.splits(operator)
        if split != splits[operator]
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_way_down_ends_where_no_neighbour_is_better(seed: int) -> None:
    start = SPACE.random_partition(random.Random(seed))
    walk = descend(SlowSimulation(MODEL, start), SPACE, Limits(patience=1.0))
    assert walk.ending == "no gain"
    times = [best.makespan_ns for best in walk.bests]
    assert times == sorted(set(times), reverse=True)
    assert walk.accepted == len(times) - 1 > 0
    bottom = SlowSimulation(MODEL, walk.splits)
    assert bottom.makespan_ns == walk.makespan_ns <= min(times_around(walk.splits))
    again = descend(bottom, SPACE, Limits(patience=1.0))
    assert again.accepted == again.refused == 0
    assert again.evaluated == len(times_around(walk.splits)) == SPACE.num_neighbours


def test_neighbours_that_do_not_fit_are_counted_and_not_taken() -> None:
    class Tight(SlowSimulation):
        def propose_changes(self, changes: Mapping[int, Split], limit_ns: int | None = None) -> int | None:
            found = super().propose_changes(changes, limit_ns)
            return None if any(split.num_tiles > 1 for split in changes.values()) else found

    walk = descend(Tight(MODEL, ALONE), SPACE, Limits(patience=1.0))
    large = sum(split.num_tiles > 1 for operator in range(SPACE.num_operators) for split in SPACE.splits(operator))
    assert walk.refused >= large > 0
    assert all(split.num_tiles == 1 for split in walk.splits)


@pytest.mark.parametrize(("limits", "ending"), [(Limits(budget_s=1e-9), "budget"), (Limits(proposals=1), "proposals")])
def test_the_way_down_ends_with_its_limits(limits: Limits, ending: str) -> None:
    walk = descend(SlowSimulation(MODEL, ALONE), SPACE, limits)
    assert walk.ending == ending
    assert walk.evaluated <= SPACE.count(0)


def test_the_way_down_is_watched_and_interrupted() -> None:
    start = SPACE.random_partition(random.Random(2))
    seen: list[tuple[float, int, int]] = []

    def watch(seconds: float, tried: int, best_ns: int) -> bool:
        seen.append((seconds, tried, best_ns))
        return len(seen) < 3

    walk = descend(SlowSimulation(MODEL, start), SPACE, Limits(patience=1.0), watch=watch)
    assert walk.ending == "interrupted"
    assert len(seen) == 3
    assert seen[-1][2] == walk.makespan_ns
