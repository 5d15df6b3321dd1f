"""Operators in simulated time, whatever the scheduler: nothing too early, nothing twice, nothing lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import ScheduleError
from bow.scheduler import ListScheduler, critical_path
from bow.simulator import simulate_operators
from bow.strategy import Span, Timeline
from tests.scheduler.graphs import Dependencies, dependencies


def by_operator(timeline: Timeline) -> dict[int, Span]:
    spans = {int(span.details["operator"]): span for span in timeline.spans}
    assert len(spans) == len(timeline.spans)
    return spans


@given(st.data(), dependencies(), st.integers(1, 5), st.booleans(), st.sampled_from([0, 3]))
def test_every_schedule_can_be_carried_out(
    data: st.DataObject, before: Dependencies, executors: int, stay: bool, dispatch_ns: int
) -> None:
    costs = data.draw(st.lists(st.integers(0, 9), min_size=len(before), max_size=len(before)))
    levels = critical_path(before, costs).levels
    priority = data.draw(st.sampled_from([None, levels]))
    scheduler = ListScheduler(before, executors, priority, stay)
    timeline = simulate_operators(scheduler, lambda operator, _: costs[operator], dispatch_ns=dispatch_ns)
    spans = by_operator(timeline)
    assert sorted(spans) == list(range(len(before)))
    for index, those in enumerate(before):
        assert all(spans[earlier].end_ns <= spans[index].start_ns for earlier in those)
    for place in timeline.places:
        own = sorted(
            (span for span in timeline.spans if span.place == place), key=lambda span: (span.start_ns, span.end_ns)
        )
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(own))
    if not dispatch_ns:  # Graham, Bounds on Multiprocessing Timing Anomalies, 1969
        end_ns = max(span.end_ns for span in timeline.spans)
        length = max(levels)
        assert max(length, sum(costs) / executors) <= end_ns
        assert end_ns <= (sum(costs) - length) / executors + length


def test_a_scheduler_begins_every_step_anew() -> None:
    scheduler = ListScheduler([[], [0], [0]], executors=2)
    first = simulate_operators(scheduler, lambda operator, _: operator + 1)
    assert simulate_operators(scheduler, lambda operator, _: operator + 1).spans == first.spans


# Three chains: the long one last in the order of numbers.
CHAINS: Dependencies = [[], [], [], [2], [3]]
COSTS = [3, 3, 2, 2, 2]


def test_the_critical_path_goes_first() -> None:
    levels = critical_path(CHAINS, COSTS).levels
    ends = {
        name: max(span.end_ns for span in simulate_operators(scheduler, lambda operator, _: COSTS[operator]).spans)
        for name, scheduler in (
            ("one queue", ListScheduler(CHAINS, 2)),
            ("critical path", ListScheduler(CHAINS, 2, levels)),
        )
    }
    assert ends == {"one queue": 9, "critical path": 6}


def test_operators_stay_where_what_they_read_was_made() -> None:
    before: Dependencies = [[], [], [1], [0]]
    costs = [4, 3, 3, 3]
    for stay, expected in ((True, [0, 1, 1, 0]), (False, [0, 1, 1, 0])):
        spans = by_operator(simulate_operators(ListScheduler(before, 2, stay=stay), lambda o, _: costs[o]))
        assert [spans[index].place for index in range(4)] == [f"executor {executor}" for executor in expected]
    # 0 and 1 end together: without the wish to stay, executor 0 takes what was made on 1.
    for stay, expected in ((True, [0, 1, 1]), (False, [0, 1, 0])):
        timeline = simulate_operators(ListScheduler([[], [], [1]], 2, stay=stay), lambda o, _: 2)
        places = by_operator(timeline)
        assert [places[index].place for index in range(3)] == [f"executor {executor}" for executor in expected]


def test_the_contention_of_one_queue_delays_starts_one_behind_another() -> None:
    timeline = simulate_operators(ListScheduler([[], [], []], 3), lambda o, _: 10, dispatch_ns=2)
    assert [span.start_ns for span in timeline.spans] == [2, 4, 6]


@pytest.mark.parametrize(
    ("executors", "priority", "message"),
    [(0, None, "at least 1 executor, got 0"), (1, [1.0], "1 priorities for 2 operators")],
)
def test_what_cannot_be_scheduled_is_refused(executors: int, priority: list[float] | None, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        ListScheduler([[], []], executors, priority)
