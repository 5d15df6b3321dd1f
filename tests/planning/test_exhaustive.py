"""The fastest strategy of all, with a proof, against looking at every single one."""

from __future__ import annotations

import functools
import itertools
import math
import random

import pytest

from bow.errors import ScheduleError
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Partition, Split, everything_on
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search.baselines import baseline
from bow.planning.search.exhaustive import Evaluate, ExhaustiveSearch, Proof, symmetries
from bow.planning.search.lower_bounds import StepBounds
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.search import search
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.python_simulator import simulate
from bow.planning.simulator.simulation import Simulation
from bow.planning.simulator.step_model import StepModel
from bow.planning.tiles.planning import problem_of
from tests.planning.search_graphs import Builder, branches, language_model, model_of, perceptron

PAIR = load_topology("two_cores")
NODE = load_topology("p100_node")
GRAPHS = {
    "perceptron": perceptron(samples=4, sizes=(2048, 64)),
    "branches": branches(samples=4, channels=2, size=4),
    "language model": language_model(samples=4, units=64, words=64, steps=2, layers=1),
}


def space_of(graph: OperatorGraph, topology: DeviceTopology) -> SplitSpace:
    return SplitSpace(graph, RULES, topology.num_devices, devices="distinct", even=True, max_tiles=2)


def evaluator(model: StepModel) -> Evaluate:
    return Simulation(model, Partition(model.graph.hash, everything_on(model.graph))).evaluate


def proven(graph: OperatorGraph, topology: DeviceTopology, *, prune: bool = True, start: bool = True) -> Proof:
    model, splits = model_of(graph, topology), everything_on(graph) if start else None
    return ExhaustiveSearch(model, space_of(graph, topology), evaluator(model), start=splits, prune=prune).run()


def fastest_ns(graph: OperatorGraph, topology: DeviceTopology) -> int:
    """By simulating every strategy from nothing."""
    model, space = model_of(graph, topology), space_of(graph, topology)
    every = itertools.product(*(list(space.splits(operator)) for operator in range(space.num_operators)))
    return min(simulated_ns(model, splits) for splits in every)


def simulated_ns(model: StepModel, splits: tuple[Split, ...]) -> int:
    return simulate(model, Partition(model.graph.hash, splits)).makespan_ns


@pytest.mark.parametrize("start", [True, False])
def test_the_proven_optimum_is_the_fastest_of_all(start: bool) -> None:
    graph = GRAPHS["perceptron"]
    proof = proven(graph, PAIR, start=start)
    assert proof.is_complete
    assert proof.makespan_ns == proof.bound_ns == fastest_ns(graph, PAIR)
    assert proof.gap == 0
    assert simulated_ns(model_of(graph, PAIR), proof.splits) == proof.makespan_ns


def test_pruning_changes_nothing_but_how_many_are_looked_at() -> None:
    graph = GRAPHS["perceptron"]
    every, pruned = proven(graph, PAIR, prune=False), proven(graph, PAIR)
    assert every.makespan_ns == pruned.makespan_ns
    assert 0 < pruned.evaluated < every.evaluated <= every.partitions
    assert every.evaluated >= every.partitions / every.symmetries


def test_the_search_finds_the_optimum_that_is_proven() -> None:
    """A convolution and a dense layer on four devices: 10^7 strategies, of which the walks look at a thousand."""
    build = Builder()
    x = build.convolution(build.bring(64, 8, 16, 16), 32, kernel=5)
    graph = build.graph(build.linear(build.add("reshape", [x], (64, 32 * 12 * 12))[0], 256))
    problem = problem_of(graph, NODE)
    starts = ("single", "data")
    settings = SearchSettings(None, 300, patience=None, starts=starts, devices="regular", even=True)
    found = search(problem, settings)
    splits = found.partition.splits
    space = SplitSpace(graph, RULES, NODE.num_devices, devices="regular", even=True, including=[splits])
    simulation = problem.simulation(splits)
    proof = ExhaustiveSearch(simulation.model, space, simulation.evaluate, start=splits).run()
    assert proof.is_complete
    assert found.makespan_ns == proof.makespan_ns == proof.bound_ns
    assert found.makespan_ns < min(
        problem.simulate(baseline(problem, name)).makespan_ns for name in (*starts, "expert")
    )
    assert found.evaluated < 2000 < proof.partitions / 1000


def test_of_strategies_that_differ_in_names_of_devices_one_is_looked_at() -> None:
    graph = perceptron(samples=2, sizes=(2, 2))
    model, space = model_of(graph, NODE), SplitSpace(graph, RULES, 4, devices="distinct", even=True, max_tiles=1)
    proof = ExhaustiveSearch(model, space, evaluator(model), prune=False).run()
    assert proof.symmetries == math.factorial(4) == len([*symmetries(NODE)])
    # Three operators on four devices that are alike: ways to divide three things into at most four heaps.
    assert (proof.partitions, proof.evaluated) == (64, 5)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("topology", [PAIR, NODE], ids=["pair", "node"])
def test_no_bound_is_above_what_begins_so(name: str, topology: DeviceTopology) -> None:
    """Along random strategies: bounds of all their beginnings never fall, and end at most at the simulated time."""
    graph, source = GRAPHS[name], random.Random(4)
    model, space = model_of(graph, topology), space_of(graph, topology)
    options = [list(space.splits(operator)) for operator in range(space.num_operators)]
    bounds = StepBounds(model, options)
    for _ in range(12):
        prefix, splits, last = bounds.empty_prefix(), [], 0
        for of in options:
            option = source.randrange(len(of))
            prefix = bounds.extended(bounds.extensions(prefix), option)
            splits.append(of[option])
            assert prefix.bound_ns >= last
            last = prefix.bound_ns
        assert 0 < last <= simulated_ns(model, tuple(splits))


def test_what_is_given_up_says_how_much_faster_another_could_be() -> None:
    graph = GRAPHS["language model"]
    model, splits = model_of(graph, NODE), everything_on(graph)
    told: list[int] = []

    def watch(seconds: float, prefixes: int, best_ns: int) -> bool:
        told.extend([prefixes] if prefixes else [])  # 0: while the tables are made
        return len(told) < 30

    proof = ExhaustiveSearch(model, space_of(graph, NODE), evaluator(model), start=splits, watch=watch).run()
    assert told == [*range(1, 31)]
    assert not proof.is_complete
    assert 0 < proof.bound_ns < proof.makespan_ns
    assert proof.gap == pytest.approx(1 - proof.bound_ns / proof.makespan_ns)


@pytest.mark.parametrize("turns", [1, 5, 20])
def test_budget_and_watch_end_the_tables_too(turns: int) -> None:
    """Nothing is known of other strategies then but that the start is one."""
    graph = GRAPHS["language model"]
    model, splits = model_of(graph, NODE), everything_on(graph)
    examine = functools.partial(ExhaustiveSearch, model, space_of(graph, NODE), evaluator(model))
    ticks, left = itertools.count(), iter([True] * turns)
    late = examine(start=splits, budget_s=turns, clock=lambda: float(next(ticks)))
    unwatched = examine(start=splits, watch=lambda *_: next(left, False))
    for proof in (late.run(), unwatched.run()):
        assert not proof.is_complete
        assert (proof.bound_ns, proof.prefixes, proof.evaluated) == (0, 0, 0)
        assert proof.splits == splits
        assert proof.makespan_ns == simulated_ns(model, splits)
        assert proof.gap == 1
    with pytest.raises(
        ScheduleError,
        match="ended before it found a partition that fits into memory; increase budget_s or pass a start",
    ):
        examine(watch=lambda *_: False).run()


@pytest.mark.parametrize(
    ("devices", "even", "description"),
    [
        (2, False, "at most 2 tiles an operator, on any devices"),
        (4, True, "at most 4 tiles of equal sizes an operator, on different devices"),
        (8, False, "at most 8 tiles an operator, on evenly spaced devices or on one of 4 lists drawn at random"),
    ],
)
def test_spaces_say_which_strategies_they_hold(devices: int, even: bool, description: str) -> None:
    assert SplitSpace(GRAPHS["perceptron"], RULES, devices, even=even).description == description


def test_without_a_strategy_that_fits_there_is_no_optimum() -> None:
    graph = perceptron(samples=2, sizes=(2, 2))
    model, space = model_of(graph, PAIR), SplitSpace(graph, RULES, 2, even=True, max_tiles=1)
    with pytest.raises(ScheduleError, match="none of the examined partitions fits"):
        ExhaustiveSearch(model, space, lambda splits, limit_ns: None).run()
