"""The walk restricted to placements."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from benchmarks.placement_machine import k80_machine
from bow.errors import ScheduleError
from bow.planning.placement.groups import SearchBudget, SimulatedEvaluator, module_groups
from bow.planning.placement.methods import GroupProposals, multi_start_metropolis
from tests.planning.placement.placed_steps import evaluator, made_of, unrolled


def unrolled_evaluator(**fields) -> SimulatedEvaluator:
    graph = unrolled(steps=3, layers=2)
    return evaluator(graph, module_groups(graph), **fields)


def placement(evaluate, splits) -> tuple[int, ...]:
    return tuple(splits[group.operators[0]].devices[0] for group in evaluate.groups.groups)


def test_moves_take_whole_groups_to_one_other_device():
    evaluate = unrolled_evaluator()
    proposals = GroupProposals(evaluate, random.Random(0))
    splits = list(evaluate.groups.splits((1,) * len(evaluate.groups)))
    for _ in range(200):
        for operator, split in proposals.draw(splits):
            splits[operator] = split
        devices = placement(evaluate, splits)
        assert tuple(splits) == evaluate.groups.splits(devices)


def test_moves_are_as_likely_forth_as_back():
    graph = made_of(*((f"cell@{n}", "lstm_cell", [f"cell@{n - 1}" if n else "batch"]) for n in range(2)))
    evaluate = evaluator(graph)  # two groups of one layer on three devices
    every = list(itertools.product(range(3), repeat=2))
    draws = 6000
    counts: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for start in every:
        proposals = GroupProposals(evaluate, random.Random(1))
        splits = evaluate.groups.splits(start)
        for _ in range(draws):
            changed = list(splits)
            for operator, split in proposals.draw(splits):
                changed[operator] = split
            counts[start, placement(evaluate, changed)] += 1
    pairs = [
        (one, other) for one, other in itertools.combinations(every, 2) if counts[one, other] or counts[other, one]
    ]
    assert any(sum(a != b for a, b in zip(*pair, strict=True)) == 2 for pair in pairs)  # a whole layer moved
    for one, other in pairs:
        assert counts[one, other] == pytest.approx(counts[other, one], rel=0.2)


def test_a_walk_finds_the_best_placement_of_a_small_graph():
    chains = [(f"{chain}{n}", "linear", ["batch" if not n else f"{chain}{n - 1}"]) for chain in "ab" for n in range(3)]
    evaluate = evaluator(made_of(*chains, ("end", "x", ["a2", "b2"]), flops=1e10))
    every = evaluate(list(itertools.product(range(3), repeat=7)))
    told: list[str] = []
    found = multi_start_metropolis(evaluate, SearchBudget(placements=3000), 0, told.append)
    assert evaluate([found])[0] == min(time for time in every if time is not None)
    assert [line.split(":")[0] for line in told] == ["from single", "from expert", "from random"]


def test_a_walk_is_the_same_for_the_same_seed():
    first, again = (
        multi_start_metropolis(unrolled_evaluator(), SearchBudget(placements=90), 4, lambda message: None)
        for _ in range(2)
    )
    assert first == again


def test_a_walk_stays_where_memory_suffices_and_begins_on_the_processor_if_it_must():
    evaluate = unrolled_evaluator(topology=k80_machine(2, memory_gib=1.2e-5))
    assert evaluate([(1,) * len(evaluate.groups)]) == [None]
    found = multi_start_metropolis(evaluate, SearchBudget(placements=90), 0, lambda message: None)
    assert evaluate([found])[0] is not None
    tiny = made_of(("a", "linear", ["batch"]), size=2**34)
    with pytest.raises(ScheduleError, match="no starting placement fits"):
        multi_start_metropolis(evaluator(tiny), SearchBudget(placements=9), 0, lambda message: None)


def test_ctrl_c_ends_all_walks(monkeypatch):
    def interrupted(self, splits):
        raise KeyboardInterrupt

    monkeypatch.setattr(GroupProposals, "draw", interrupted)
    evaluate, said = unrolled_evaluator(), []
    found = multi_start_metropolis(evaluate, SearchBudget(placements=90), 0, said.append)
    assert evaluate([found])[0] is not None
    assert len(said) == 1
