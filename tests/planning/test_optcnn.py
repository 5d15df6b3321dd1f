"""Sums of times, made least by eliminating one choice after another."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search.optcnn import Elimination, Layers, Term, optcnn
from bow.planning.search.problem import Problem
from bow.planning.simulator.costs import RooflineCosts
from tests.planning.search_graphs import branches, language_model, lenet, perceptron

NODE = load_topology("p100_node")


def problem_of(graph: OperatorGraph) -> Problem:
    return Problem(graph, RULES, NODE, RooflineCosts(graph, RULES, NODE))


def random_terms(source: random.Random, counts: Sequence[int]) -> list[Term]:
    terms = []
    for _ in range(source.randint(1, 8)):
        choices = tuple(sorted(source.sample(range(len(counts)), min(len(counts), source.randint(1, 3)))))
        shape = [counts[choice] for choice in choices]
        costs = np.array([source.randint(0, 99) for _ in range(math.prod(shape))])
        terms.append(Term(choices, costs.reshape(shape)))
    return terms


def cost(terms: Sequence[Term], options: Sequence[int]) -> float:
    return float(sum(term.costs[tuple(options[choice] for choice in term.choices)] for term in terms))


@given(st.randoms(use_true_random=False))
def test_the_least_sum_is_that_of_trying_everything(source: random.Random) -> None:
    counts = [source.randint(1, 4) for _ in range(source.randint(1, 5))]
    terms = random_terms(source, counts)
    least = min(cost(terms, options) for options in itertools.product(*map(range, counts)))
    found = Elimination(counts, terms).minimum()
    assert found.fixed == ()
    assert found.cost == cost(terms, found.options) == least


@settings(max_examples=30)
@given(st.randoms(use_true_random=False))
def test_where_tables_would_be_too_large_some_choices_are_fixed_and_the_cost_is_still_true(
    source: random.Random,
) -> None:
    counts = [source.randint(2, 4) for _ in range(4)]
    terms = [
        Term(pair, np.array([[source.random() for _ in range(counts[pair[1]])] for _ in range(counts[pair[0]])]))
        for pair in itertools.combinations(range(4), 2)
    ]
    found = Elimination(counts, terms, most_entries=8).minimum()
    assert found.fixed
    assert found.cost == pytest.approx(cost(terms, found.options))


@pytest.mark.parametrize("graph", [perceptron(), lenet(), branches()], ids=["perceptron", "lenet", "branches"])
def test_small_graphs_are_solved_exactly(graph: OperatorGraph) -> None:
    found = Layers(problem_of(graph).model()).solve()
    assert not found.fixed
    assert found.cost > 0


def test_steps_of_a_layer_are_split_alike() -> None:
    graph = language_model(steps=3)
    found = optcnn(problem_of(graph))
    cells = {split for operator, split in zip(graph.operators, found, strict=True) if operator.layer == "lstm0"}
    assert len(cells) == 1
