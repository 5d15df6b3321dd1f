"""The strategies that searches start from and are compared with."""

import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

from bow.errors import SettingError
from bow.planning.problem.split import Split
from bow.planning.search.baselines import data_parallel, model_parallel, single_device
from bow.planning.search.experts import expert
from bow.planning.search.moves import SplitSpace
from bow.planning.search.optcnn import optcnn
from bow.planning.search.problem import Problem

Strategy: TypeAlias = tuple[Split, ...]

BASELINES: Mapping[str, Callable[[Problem], Strategy]] = {
    "single": lambda problem: single_device(problem.graph),
    "data": lambda problem: data_parallel(problem.graph, problem.rules, problem.topology.num_devices),
    "model": lambda problem: model_parallel(problem.graph, problem.costs, problem.topology.num_devices),
    "expert": lambda problem: expert(problem.graph, problem.rules, problem.topology),
    "optcnn": lambda problem: optcnn(problem.graph, problem.rules, problem.topology, problem.costs).splits,
}
"""Strategies that need no search, by name: of one learner with all devices of the problem."""


def baseline(problem: Problem, name: str) -> Strategy:
    """A strategy that needs no search."""
    if name not in BASELINES:
        raise SettingError(f"there is no baseline {name!r}; take one of {', '.join(BASELINES)}")
    return BASELINES[name](problem)


def random_strategy(problem: Problem, space: SplitSpace, source: random.Random, attempts: int = 100) -> Strategy:
    """A strategy drawn at random that fits the devices' memory, if one of some does."""
    for _ in range(attempts - 1):
        splits = space.random_strategy(source)
        if problem.simulate(splits).refusal is None:
            return splits
    return space.random_strategy(source)
