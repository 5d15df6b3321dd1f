from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bow.errors import ScheduleError
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.problem.partition import Split, everything_on
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.search.explain import explain
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.search import search
from bow.planning.search.search_space import SplitSpace
from bow.planning.tiles.planning import problem_of
from tests.planning.search_graphs import perceptron

KIND = DeviceKind("gpu", memory_gib=1, tflops=1.0, gb_per_s=100, overhead_us=5)
PAIR = DeviceTopology(
    "pair", (Device("left", KIND), Device("right", KIND)), (Link(("left", "right"), 10.0, 1.0, shared=True),)
)
GRAPH = perceptron()
PROBLEM = problem_of(GRAPH, PAIR)
SPACE = SplitSpace(GRAPH, RULES, 2)
DATA = data_parallel(GRAPH, RULES, 2)


def test_every_operator_is_told_with_its_split_and_devices() -> None:
    explained = explain(PROBLEM, DATA, operators=())
    assert [each.name for each in explained.operators] == [operator.name for operator in GRAPH.operators]
    assert [each.split for each in explained.operators] == list(DATA)
    assert explained.operators[0].split_text(DATA[0]) == "sample (S) 2"
    assert "sample (S) 2" in str(explained)
    assert explained.operators[0].devices == ("left", "right")
    assert explained.makespan_ns == PROBLEM.simulate(DATA).makespan_ns
    assert (explained.tried, explained.left_out) == (0, 0)


def test_times_of_operators_add_up_to_all_tasks_of_a_step_on_one_device() -> None:
    splits = everything_on(GRAPH)
    explained = explain(PROBLEM, splits, operators=())
    total = sum(each.forward_ns + each.backward_ns + each.updating_ns for each in explained.operators)
    assert total == PROBLEM.simulate(splits).task_ns
    assert all(each.moved_bytes == each.moving_ns == each.summing_ns == 0 for each in explained.operators)


def test_sums_and_transfers_belong_to_their_operators() -> None:
    explained = explain(PROBLEM, DATA, operators=())
    by_kind = {each.name: each for each in explained.operators}
    assert by_kind[GRAPH.operators[0].name].summing_ns > 0  # its weights' gradients
    moved = sum(each.moved_bytes for each in explained.operators)
    assert 0 < moved < PROBLEM.simulate(DATA).communication_bytes  # the sums are not among them


def test_other_choices_cost_what_simulating_them_says() -> None:
    explained = explain(PROBLEM, DATA, space=SPACE)
    assert explained.tried == sum(SPACE.count(number) for number in range(len(DATA))) - len(DATA)
    for number, each in enumerate(explained.operators):
        for choice in each.alternatives:
            changed = (*DATA[:number], choice.split, *DATA[number + 1 :])
            assert choice.makespan_ns == PROBLEM.simulate(changed).makespan_ns
        times = [choice.makespan_ns or 0 for choice in each.alternatives]
        assert times == sorted(times)
        assert len({choice.split.degrees for choice in each.alternatives}) == len(each.alternatives)


def test_a_choice_that_does_not_fit_is_said_to() -> None:
    small = DeviceKind("small", memory_gib=40_000 / 2**30, tflops=1.0, gb_per_s=100)
    devices, links = (Device("large", KIND), Device("small", small)), (Link(("large", "small"), 10.0, 1.0),)
    problem = problem_of(GRAPH, DeviceTopology("tight", devices, links))
    explained = explain(problem, everything_on(GRAPH), operators=(0,), keep=100)
    assert any(choice.makespan_ns is None for choice in explained.operators[0].alternatives)
    assert explained.operators[1].alternatives == ()
    with pytest.raises(ScheduleError, match="small"):
        explain(problem, everything_on(GRAPH, 1))


def test_it_ends_with_its_budget_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()  # at the beginning, and before each operator
    monkeypatch.setattr("bow.planning.search.explain.time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    explained = explain(PROBLEM, DATA, budget_s=1.5)
    assert explained.operators[0].alternatives
    assert all(not each.alternatives for each in explained.operators[1:])
    assert explained.left_out == len(DATA) - 1


def test_interrupt_keeps_what_was_simulated() -> None:
    class Interrupted(SplitSpace):
        def split_at(self, operator: int, index: int) -> Split:
            if (operator, index) == (1, 1):
                raise KeyboardInterrupt
            return super().split_at(operator, index)

    explained = explain(PROBLEM, DATA, space=Interrupted(GRAPH, RULES, 2))
    assert explained.operators[0].alternatives
    assert explained.left_out == len(DATA) - 1
    assert explained.makespan_ns == PROBLEM.simulate(DATA).makespan_ns


def test_text_has_a_line_for_every_operator() -> None:
    lines = str(explain(PROBLEM, DATA)).splitlines()
    assert len(lines) == 2 + len(GRAPH.operators)
    assert "left right" in lines[1]
    assert "%" in lines[1]


@pytest.mark.parametrize("changes", [{}, {"even": True}, {"devices": "distinct"}, {"learners": (2,)}], ids=str)
def test_what_was_found_is_explained_by_what_was_searched(changes: dict[str, Any]) -> None:
    graph = perceptron(samples=3)
    settings = SearchSettings(None, 5, starts=("single",), descend=False)
    found = search(problem_of(graph, PAIR), replace(settings, **changes))
    size = 2 // found.partition.learners
    space = SplitSpace(graph, RULES, size, devices=found.settings.devices, even=found.settings.even)
    assert found.explain().tried == space.num_neighbours
    assert space.num_neighbours != SplitSpace(graph, RULES, 2).num_neighbours or not changes
