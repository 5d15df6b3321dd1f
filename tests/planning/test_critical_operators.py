"""What the end of a step waits for: a chain of tasks without a gap."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bow.planning.problem.partition import Split, everything_on
from bow.planning.search.proposals import CriticalOperators, critical_operators
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.simulator.simulation import Simulation
from bow.planning.simulator.step_model import StepModel, TaskKind, TaskRanks
from bow.planning.tiles.planning import problem_of
from tests.planning.proposal_chains import from_nothing, simulation
from tests.planning.random_steps import random_step, random_strategy
from tests.planning.search_graphs import perceptron


def simulated(source: random.Random) -> tuple[SimulationResult, Simulation]:
    """A random step under a strategy that fits, by both simulators."""
    step = random_step(source)
    partition = random_strategy(source, step)
    result = from_nothing(step, partition)
    assume(result.refusal is None)
    return result, simulation(step, partition, "incremental")


@given(st.randoms(use_true_random=False))
def test_the_chain_takes_the_whole_step(source: random.Random) -> None:
    result, found = simulated(source)
    shares = critical_operators(found.task_table(), found.model, source)
    of_operators = sum(shares.values())
    if found.partition.learners == 1:
        assert of_operators == pytest.approx(result.makespan_ns)
    else:
        averaging = max((task.duration_ns for task in result.tasks if task.kind is TaskKind.AVERAGING), default=0)
        assert result.makespan_ns - averaging - 1 <= of_operators <= result.makespan_ns + 1
    assert all(0 <= operator < len(found.model.graph.operators) for operator in shares)


@settings(max_examples=10)
@given(st.randoms(use_true_random=False))
def test_both_simulators_have_the_same_tasks(source: random.Random) -> None:
    python, native = simulated(source)
    ran = zip(python.tasks, python.times, strict=True)
    assert sorted(native.task_table().tolist()) == sorted([task.rank, at.start_ns, at.end_ns] for task, at in ran)


def test_ranks_know_whose_tasks_have_them() -> None:
    ranks = TaskRanks(operators=5, groups=3)
    for kind in TaskKind:
        for owner in range(3):
            rank = ranks.of(kind, owner)
            is_group = TaskKind.GATHER <= kind <= TaskKind.UPDATE
            is_averaging = kind is TaskKind.AVERAGING
            assert ranks.operator(rank) == (None if is_group or is_averaging else owner)
            assert ranks.group(rank) == (owner if is_group else None)


def test_what_takes_most_is_drawn_most_and_what_changed_is_noticed() -> None:
    graph = perceptron(samples=32, sizes=(4096, 4096, 16, 16))
    problem = problem_of(graph, "p100_node")
    now = problem.simulation(everything_on(graph))
    critical = CriticalOperators(now, random.Random(1))
    large, small = 0, 4  # 4,096 x 4,096 and 16 x 16 weights
    counts = Counter(critical.draw() for _ in range(200))
    assert counts[large] > 100 > counts[small]
    assert None not in counts
    now.propose_changes({large: Split((1, 4), (0, 1, 2, 3))})
    now.accept()
    later = Counter(critical.draw() for _ in range(200))
    assert later[large] < 0.8 * counts[large]  # split among four devices it takes a smaller part of the step


def test_a_step_without_time_has_no_operators() -> None:
    class Nothing:
        model: StepModel = None  # type: ignore[assignment]

        def task_table(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
            return np.zeros((2, 3), np.int64)

    assert CriticalOperators(Nothing(), random.Random(1)).draw() is None
