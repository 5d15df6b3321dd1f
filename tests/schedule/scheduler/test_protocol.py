"""Decisions as data: repeating them gives the same timeline, and an order is carried out to the letter."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.manycore.simulator import simulate_operators
from bow.errors import ScheduleError
from bow.schedule import OrderedSchedule, Timeline
from bow.schedule.scheduler import (
    CoRunScheduler,
    DecisionRecorder,
    ListScheduler,
    Start,
    critical_path,
    held_by_core,
)
from tests.schedule.replay import OrderScheduler, WaitRecorder, with_waits
from tests.schedule.scheduler.graphs import Dependencies, dependencies, listed, times
from tests.schedule.scheduler.watching import check_carried_out


@st.composite
def recorded(draw: st.DrawFn) -> tuple[WaitRecorder, Dependencies, int, dict[int, int], Timeline]:
    """Decisions of a strategy, and what came of them with the predicted times."""
    before = draw(dependencies(most=16))
    cores = draw(st.integers(1, 6))
    predicted = draw(times(before, cores))
    kinds = draw(listed(st.sampled_from(["conv", "pool", "add"]), before))
    strategy: Any = draw(st.sampled_from([1, 2, 3, 4]))
    recorder = WaitRecorder(CoRunScheduler(before, predicted, kinds, cores, strategy))
    timeline = simulate_operators(recorder, lambda start: predicted[start.operator][start.threads])
    durations = {start.operator: predicted[start.operator][start.threads] for start in recorder.decisions}
    return recorder, before, cores, durations, timeline


def by_operator(recorder: DecisionRecorder) -> dict[int, Start]:
    return {start.operator: start for start in recorder.decisions}


def begins(timeline: Timeline) -> dict[int, int]:
    return {int(span.details["operator"]): span.start_ns for span in timeline.spans}


def by_definition(
    before: list[frozenset[int]], held: tuple[tuple[int, ...], ...], took: dict[int, int]
) -> dict[int, int]:
    """When each operator starts: when what it depends on is over and it is the head of the lists of all its cores."""
    left = [list(each) for each in held]
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    now = 0
    while len(ends) < len(before):
        for own in left:
            while own and own[0] in ends and ends[own[0]] <= now:
                own.pop(0)
        over = {operator for operator, end in ends.items() if end <= now}
        heads = [operator for operator in {own[0] for own in left if own} if operator not in starts]
        free = [
            operator
            for operator in heads
            if before[operator] <= over and all(own[0] == operator for own in left if operator in own)
        ]
        for operator in free:
            starts[operator] = now
            ends[operator] = now + took[operator]
        if not free:
            now = min(end for end in ends.values() if end > now)
    return starts


@given(recorded())
def test_repeating_decisions_with_the_predicted_times_gives_the_same_timeline(case) -> None:
    recorder, before, cores, durations, timeline = case
    held = held_by_core(recorder.decisions, cores)
    exact = with_waits(before, recorder.waits)
    siblings = any(start.sibling for start in recorder.decisions)
    again = WaitRecorder(OrderScheduler(exact, held, siblings=siblings))
    repeated = simulate_operators(again, lambda start: durations[start.operator])
    assert sorted(map(str, repeated.spans)) == sorted(map(str, timeline.spans))
    assert by_operator(again) == by_operator(recorder)
    assert begins(timeline) == by_definition(exact, held, durations)


@given(recorded())
def test_without_what_was_waited_for_on_purpose_nothing_starts_later(case) -> None:
    recorder, before, cores, durations, timeline = case
    held = held_by_core(recorder.decisions, cores)
    siblings = any(start.sibling for start in recorder.decisions)
    repeated = simulate_operators(
        OrderScheduler(before, held, siblings=siblings), lambda start: durations[start.operator]
    )
    check_carried_out(repeated, before)
    assert begins(repeated) == by_definition([*map(frozenset, before)], held, durations)
    assert all(begins(repeated)[operator] <= start for operator, start in begins(timeline).items())


def test_a_core_that_was_left_idle_on_purpose_is_told_by_the_waits() -> None:
    # When 1 is over, 3 would outlast 0, and 2 needs all cores. When 0 is over, 4 takes longest, and 3 fits beside it.
    before: Dependencies = [[], [], [1], [1], [0]]
    predicted = [{2: 50}, {1: 0}, {3: 80}, {1: 60}, {2: 100}]
    recorder = WaitRecorder(CoRunScheduler(before, predicted, kinds=list("abcde"), cores=3))
    timeline = simulate_operators(recorder, lambda start: predicted[start.operator][start.threads])
    assert begins(timeline) == {0: 0, 1: 0, 4: 50, 3: 50, 2: 150}
    assert recorder.waits == {4: 0, 3: 0, 2: 4}
    held = held_by_core(recorder.decisions, cores=3)
    assert held == ((0, 4, 2), (0, 4, 2), (1, 3, 2))
    for dependencies_, begin in ((with_waits(before, recorder.waits), 50), (before, 0)):
        order = OrderScheduler(dependencies_, held)
        repeated = simulate_operators(order, lambda start: predicted[start.operator][start.threads])
        assert begins(repeated)[3] == begin


@given(recorded())
def test_a_schedule_takes_the_order_of_the_cores(case) -> None:
    recorder, before, cores, _, _ = case
    held = held_by_core(recorder.decisions, cores)
    OrderedSchedule(threads=(1,) * len(held), order=held).check(before)


@given(dependencies(), st.data(), st.integers(1, 4))
def test_what_a_list_scheduler_decided_is_repeated_too(
    before: Dependencies, data: st.DataObject, executors: int
) -> None:
    costs = data.draw(listed(st.integers(0, 9), before))
    small = data.draw(st.sets(st.sampled_from(range(len(before)))))
    levels = critical_path(before, costs).levels
    recorder = WaitRecorder(ListScheduler(before, executors, levels, small=small))
    timeline = simulate_operators(recorder, lambda start: costs[start.operator])
    order = held_by_core(recorder.decisions, executors)
    threads = [1] * executors
    again = WaitRecorder(OrderScheduler(with_waits(before, recorder.waits), order, threads=threads))
    repeated = simulate_operators(again, lambda start: costs[start.operator])
    assert begins(repeated) == begins(timeline)
    assert by_operator(again) == by_operator(recorder)


def test_second_hardware_threads_have_lists_behind_those_of_the_cores() -> None:
    turns = [Start(0, 0, 2, (0, 1)), Start(1, 3, 1, (1,), sibling=True), Start(2, 1, 1, (1,))]
    assert held_by_core(turns, cores=2) == ((0,), (0, 2), (), (1,))


def test_cores_that_there_are_none_of_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"operator 1 uses core 2, and the last one is 1; schedule for 2 cores"):
        held_by_core([Start(0, 0), Start(1, 2)], cores=2)


def test_a_recorder_forgets_the_step_before() -> None:
    recorder = WaitRecorder(ListScheduler([[], [0]], executors=1))
    for _ in range(2):
        simulate_operators(recorder, lambda start: 1)
        assert [start.operator for start in recorder.decisions] == [0, 1]
        assert recorder.waits == {1: 0}
    assert [*itertools.chain(recorder.start())] == [Start(0, 0)]
    assert recorder.waits == {}
