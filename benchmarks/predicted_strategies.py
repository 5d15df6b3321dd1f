"""Strategies of every sort, to see whether what they take is predicted right."""

import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from bow.errors import BowError
from bow.planning.problem.partition import Split
from bow.planning.search.baselines import BASELINES, baseline
from bow.planning.search.problem import Problem
from bow.planning.search.search import search
from bow.planning.search.search_settings import SearchSettings
from bow.planning.search.search_space import SplitSpace
from bow.seeds import derive_seed

Strategy: TypeAlias = tuple[Split, ...]

SHARES = (0.05, 0.15, 0.4)  # Of the operators of a mixed strategy: so many are drawn at random, in turn

BASES = ("data", "single", "model")  # The rest of a mixed strategy is one of these, in turn


def draw_strategies(
    problem: Problem, num_random: int, num_mixed: int, proposals: int, seed: int
) -> dict[str, Strategy]:
    """Strategies by name, each once."""
    found: dict[Strategy, str] = {}
    for name, splits in _all(problem, num_random, num_mixed, proposals, seed):
        found.setdefault(splits, name)
    return {name: splits for splits, name in found.items()}


def _all(
    problem: Problem, num_random: int, num_mixed: int, proposals: int, seed: int
) -> Iterator[tuple[str, Strategy]]:
    for name in BASELINES:
        try:
            yield name, baseline(problem, name)
        except BowError:  # not every one is for every network
            continue
    settings = SearchSettings(budget_s=None, proposals=proposals, patience=None, descend=False, seed=seed)
    yield "search", search(problem, settings).partition.splits
    space = SplitSpace(problem.graph, problem.rules, problem.topology.num_devices)
    source = random.Random(derive_seed(seed, 0))
    for number in range(num_mixed):
        base, share = BASES[number % len(BASES)], SHARES[number // len(BASES) % len(SHARES)]
        yield f"{base}, {share:.0%} random {number}", mixed(baseline(problem, base), space, share, source)
    for number in range(num_random):
        yield f"random {number}", space.random_partition(source)


def mixed(splits: Sequence[Split], space: SplitSpace, share: float, source: random.Random) -> Strategy:
    """A strategy with some operators' splits drawn at random."""
    changed = list(splits)
    for operator in source.sample(range(len(changed)), max(1, round(share * len(changed)))):
        changed[operator] = space.draw(operator, source)
    return tuple(changed)
