from __future__ import annotations

import json
import math
from typing import Any

import pytest

from bow.files import DAMAGE
from bow.planning.problem.box import Box, tiles
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.rules import RULES
from bow.planning.simulator.costs import MeasuredCosts, RooflineCosts, TileTime, TileTimes, tile_key
from tests.planning.search_graphs import branches, lenet, perceptron
from tests.planning.test_costs import ONE, box_of, number_of

WRONG_TILES = [[1], [1, -1], [math.inf, 1], [1, math.nan], "ab", 3]
WRONG_UPDATES = [math.inf, math.nan, -1, 10**400, None]
DAMAGED = [
    *([], {}, {"tiles": {}}),
    *({"tiles": {"a": each}, "updates": {}} for each in WRONG_TILES),
    *({"tiles": {"a": [1, 2]}, "updates": {"graph": each}} for each in WRONG_UPDATES),
]


def test_measured_tile_takes_the_measured_time_and_others_follow_the_whole_operator() -> None:
    graph = branches()
    times = TileTimes({_key(graph, 0): TileTime(300_000, 700_000)}, {graph.hash: 0.5})
    costs, roofline = MeasuredCosts(graph, RULES, ONE, {"gpu": times}), RooflineCosts(graph, RULES, ONE)
    box = box_of(graph, 0)
    assert (costs.tile_time(0, box, 0).forward_ns, costs.tile_time(0, box, 0).backward_ns) == (300_000, 700_000)
    factor = 1_000_000 / (roofline.tile_time(0, box, 0).forward_ns + roofline.tile_time(0, box, 0).backward_ns)
    half = next(iter(tiles(graph.output_shape(graph.operators[0]), (2, 1, 1, 1))))
    assert costs.tile_time(0, half, 0).forward_ns == pytest.approx(
        factor * roofline.tile_time(0, half, 0).forward_ns, abs=1
    )
    other = number_of(graph, "linear")
    expected = factor * roofline.tile_time(other, box_of(graph, other), 0).forward_ns
    assert costs.tile_time(other, box_of(graph, other), 0).forward_ns == pytest.approx(expected, abs=1)
    assert costs.update_ns(1000, 0) == 500


def test_costs_do_not_depend_on_the_order_of_questions() -> None:
    graph = lenet()
    times = TileTimes({_key(graph, number): TileTime(1000 * number + 1, 500) for number in (0, 2)})
    boxes = [(number, box_of(graph, number)) for number in range(len(graph.operators))]

    def answers(order: list[tuple[int, Box]]) -> dict[int, int]:
        costs = MeasuredCosts(graph, RULES, ONE, {"gpu": times})
        return {number: costs.tile_time(number, box, 0).forward_ns for number, box in order}

    assert answers(boxes) == answers(boxes[::-1])


def test_kind_of_device_that_was_not_measured_takes_the_rooflines_times() -> None:
    graph = perceptron()
    costs = MeasuredCosts(graph, RULES, ONE, {"another": TileTimes({_key(graph, 0): TileTime(1, 1)})})
    assert (
        costs.tile_time(0, box_of(graph, 0), 0).forward_ns
        == RooflineCosts(graph, RULES, ONE).tile_time(0, box_of(graph, 0), 0).forward_ns
    )


def test_times_survive_a_file() -> None:
    times = TileTimes({"a": TileTime(1, 2), "b": TileTime(3, 4)}, {"graph": 0.25})
    assert TileTimes.from_plain(json.loads(json.dumps(times.to_plain()))) == times


@pytest.mark.parametrize("read", DAMAGED, ids=str)
def test_damaged_times_are_refused(read: Any) -> None:
    with pytest.raises(DAMAGE):
        TileTimes.from_plain(read)


def test_an_update_of_another_graph_is_not_this_ones() -> None:
    graph = perceptron()
    costs = MeasuredCosts(graph, RULES, ONE, {"gpu": TileTimes({}, {"another": 1.0})})
    assert costs.update_ns(1000, 0) == RooflineCosts(graph, RULES, ONE).update_ns(1000, 0)


def _key(graph: OperatorGraph, number: int) -> str:
    return tile_key(graph, RULES, graph.operators[number], box_of(graph, number))
