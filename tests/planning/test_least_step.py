"""The lower bound of every plan, against simulated partitions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from bow.planning.problem.partition import everything_on
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search import lower_bounds
from bow.planning.search.lower_bounds import least_batch_ns
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.problem import Problem
from bow.planning.search.search import search
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.costs import RooflineCosts
from bow.planning.tiles.planning import problem_of
from tests.planning.random_steps import RULES as STEP_RULES
from tests.planning.random_steps import random_step, random_strategy
from tests.planning.search_graphs import branches, language_model, lenet, perceptron
from tests.planning.tiles.strategies import random_splits

GRAPHS = {
    "perceptron": perceptron(),
    "convolutions": lenet(8),
    "branches": branches(),
    "language model": language_model(),
}
NODE = load_topology("p100_node")
TOPOLOGIES = {"pair": load_topology("two_cores"), "node": NODE, "cluster": load_topology("p100_cluster", 3)}


def every_graph_on_every_topology() -> Iterator[Any]:
    """Each graph on one of the topologies in turn; `--nightly` has all."""
    for (i, name), (j, topology) in itertools.product(enumerate(GRAPHS), enumerate(TOPOLOGIES)):
        yield pytest.param(name, topology, marks=pytest.mark.nightly if i % len(TOPOLOGIES) != j else ())


@pytest.mark.parametrize(("name", "topology"), list(every_graph_on_every_topology()))
def test_no_partition_takes_less_than_the_bound(name: str, topology: str) -> None:
    graph, source = GRAPHS[name], random.Random(5)
    problem = problem_of(graph, TOPOLOGIES[topology])
    bound_ns, count = least_batch_ns(problem), problem.topology.num_devices
    assert bound_ns > 0
    space, partitions = SplitSpace(graph, RULES, count), []
    for _ in range(6):
        partitions += [space.random_partition(source), random_splits(graph, count, source)]
    for splits in partitions:
        if max(split.num_tiles for split in splits) <= count:
            assert bound_ns <= problem.simulate(splits).makespan_ns
    found = search(problem, SearchSettings(proposals=200, budget_s=None, starts=("single", "data")))
    assert bound_ns <= found.makespan_ns
    apart = problem.simulate(everything_on(graph), learners=2)
    assert least_batch_ns(problem, (2,)) <= apart.makespan_ns / 2


@hypothesis.given(st.randoms(use_true_random=False))
def test_no_partition_of_any_step_takes_less_than_the_bound(source: random.Random) -> None:
    step = random_step(source)
    problem = Problem(step.graph, STEP_RULES, step.topology, step.costs)
    bound_ns = step.learners * least_batch_ns(problem, (step.learners,))
    for _ in range(5):
        splits = random_strategy(source, step).splits
        if max(split.num_tiles for split in splits) <= step.devices_per_learner:
            assert bound_ns <= problem.simulate(splits, step.learners).makespan_ns * (1 + 1e-9)


@pytest.mark.parametrize("name", GRAPHS)
def test_one_device_takes_what_is_computed(name: str) -> None:
    problem = problem_of(GRAPHS[name], NODE.restricted([0]))
    assert least_batch_ns(problem) == problem.simulate(everything_on(GRAPHS[name])).makespan_ns


def test_the_bound_counts_operators_that_wait_for_each_other() -> None:
    graph = language_model()
    problem = problem_of(graph, TOPOLOGIES["cluster"])
    everything = problem.simulate(everything_on(graph)).task_ns
    assert least_batch_ns(problem) > 1.5 * everything / problem.topology.num_devices


def test_without_time_the_bound_is_an_equal_share_of_all_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = perceptron()
    problem = problem_of(graph, NODE)
    monkeypatch.setattr(lower_bounds, "SECONDS", -1.0)
    assert isinstance(problem.costs, RooflineCosts)
    assert least_batch_ns(problem) == problem.simulate(everything_on(graph)).makespan_ns / 4
