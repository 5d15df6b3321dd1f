"""Operators that are to stay separate do so whatever they take, and wait for nothing that they wait for anyway."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.manycore.simulator import simulate_operators
from bow.schedule import OrderedSchedule
from bow.schedule.scheduler import (
    CoRunScheduler,
    DecisionRecorder,
    Start,
    held_by_core,
    separation,
)
from tests.schedule.replay import OrderScheduler, with_waits
from tests.schedule.scheduler.graphs import Dependencies, dependencies, listed, times

KINDS = ["add", "conv", "pool"]
PAIRS = list(itertools.combinations_with_replacement(KINDS, 2))


@st.composite
def decided(draw: st.DrawFn) -> tuple[tuple[Start, ...], Dependencies, list[str], int, set[tuple[str, str]]]:
    """What a scheduler started that keeps some pairs separate."""
    before = draw(dependencies(most=10))
    cores = draw(st.integers(1, 4))
    predicted = draw(times(before, cores))
    kinds = draw(listed(st.sampled_from(KINDS), before))
    pairs = draw(st.sets(st.sampled_from(PAIRS), min_size=1))
    strategy: Any = draw(st.sampled_from([3, 4]))
    scheduler = CoRunScheduler(before, predicted, kinds, cores, strategy, avoid=pairs)
    recorder = DecisionRecorder(scheduler)
    simulate_operators(recorder, lambda start: predicted[start.operator][start.threads])
    return recorder.decisions, before, kinds, cores, pairs


@settings(max_examples=25)
@given(decided(), st.data())
def test_what_is_kept_separate_never_runs_together_whatever_it_takes(case, data: st.DataObject) -> None:
    turns, before, kinds, cores, pairs = case
    held = held_by_core(turns, cores)
    after = separation(turns, before, kinds, pairs)
    OrderedSchedule((1,) * len(held), order=held, after=after).check(before)
    actual = data.draw(listed(st.integers(0, 60), before))
    waiting = [set(earlier) for earlier in before]
    for operator, other in after:
        waiting[operator].add(other)
    siblings = any(turn.sibling for turn in turns)
    scheduler = OrderScheduler(waiting, held, siblings=siblings)
    timeline = simulate_operators(scheduler, lambda start: actual[start.operator])
    for one, other in itertools.combinations(timeline.spans, 2):
        operators = int(one.details["operator"]), int(other.details["operator"])
        if operators[0] != operators[1] and one.start_ns < other.end_ns and other.start_ns < one.end_ns:
            assert tuple(sorted(kinds[each] for each in operators)) not in pairs


@settings(max_examples=25)
@given(decided())
def test_no_wait_follows_from_others(case) -> None:
    turns, before, kinds, cores, pairs = case
    after = separation(turns, before, kinds, pairs)
    edges = {(operator, earlier) for operator, own in enumerate(before) for earlier in own}
    edges |= {(later, earlier) for lane in held_by_core(turns, cores) for earlier, later in itertools.pairwise(lane)}
    for each in after:
        assert not reaches(*each, (edges | {*after}) - {each}) or each in edges


def reaches(operator: int, other: int, edges: set[tuple[int, int]]) -> bool:
    """Whether an operator waits for another by way of others."""
    found, fresh = {operator}, {operator}
    while fresh:
        fresh = {earlier for later, earlier in edges if later in fresh} - found
        found |= fresh
    return other in found


def test_the_one_at_whose_end_an_operator_was_started_is_not_enough() -> None:
    """Operator 2 interferes with 0 and was started when 1 had ended, which is now over first."""
    turns = [Start(0, 0, cores=(0,)), Start(1, 1, cores=(1,)), Start(2, 1, cores=(1,))]
    assert separation(turns, [[], [], []], ["conv", "add", "pool"], {("conv", "pool")}) == ((2, 0),)
    assert with_waits([[], [], []], {2: 1})[2] == {1}


def test_of_several_that_interfere_those_are_waited_for_that_are_not_known_to_be_over() -> None:
    turns = [Start(0, 0), Start(1, 0), Start(2, 1), Start(3, 2)]
    kinds = ["conv", "conv", "conv", "add"]
    assert separation(turns, [[]] * 4, kinds, {("add", "conv")}) == ((3, 2), (3, 1))
