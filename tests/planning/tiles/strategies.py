"""Strategies at random: any degrees, any devices, as long as the simulator accepts them."""

from __future__ import annotations

import math
import random

from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import SplitSpace
from bow.planning.tiles.planning import problem_of

MOST_PARTS = 3
MOST_TILES = 6


def random_splits(graph: OperatorGraph, num_devices: int, draw: random.Random) -> tuple[Split, ...]:
    """A split for each operator: several tiles on a device, devices without a tile, uneven parts."""
    splits = []
    for operator in graph.operators:
        dimensions = RULES.dimensions(operator, graph)
        degrees = [1] * len(dimensions)
        for place in draw.sample(range(len(dimensions)), len(dimensions)):
            most = 1 if dimensions[place].kind is None else min(dimensions[place].size, MOST_PARTS)
            degrees[place] = draw.randint(1, max(1, min(most, MOST_TILES // math.prod(degrees))))
        those = draw.sample(range(num_devices), draw.randint(1, num_devices))
        devices = tuple(draw.choice(those) for _ in range(math.prod(degrees)))
        splits.append(Split(tuple(degrees), devices))
    return tuple(splits)


def searched_splits(graph: OperatorGraph, num_devices: int, draw: random.Random) -> tuple[Split, ...]:
    """A split for each operator out of those that a search chooses from."""
    return SplitSpace(graph, RULES, num_devices).random_partition(draw)


def problem_on(graph: OperatorGraph, num_devices: int) -> Problem:
    """A graph on some GPUs of a node."""
    return problem_of(graph, load_topology("p100_node").restricted(range(num_devices)))


def accepted_splits(problem: Problem, seed: int) -> tuple[Split, ...]:
    """Splits that the simulator accepts; every third of those that a search chooses from."""
    draw = random.Random(seed)
    kind = searched_splits if seed % 3 == 0 else random_splits
    while True:
        splits = kind(problem.graph, problem.topology.num_devices, draw)
        if problem.simulate(splits).refusal is None:
            return splits
