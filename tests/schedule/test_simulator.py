"""Operators in simulated time, whatever the scheduler: nothing too early, nothing twice, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import SettingError
from bow.schedule import Span, Timeline
from bow.schedule.scheduler import ListScheduler, critical_path
from bow.schedule.scheduler.protocol import simulate_operators
from tests.schedule.replay import OrderScheduler
from tests.schedule.scheduler.graphs import Dependencies, dependencies, listed
from tests.schedule.scheduler.watching import check_carried_out


def by_operator(timeline: Timeline) -> dict[int, Span]:
    spans = {int(span.details["operator"]): span for span in timeline.spans}
    assert len(spans) == len(timeline.spans)
    return spans


def end_ns(timeline: Timeline) -> int:
    return max(span.end_ns for span in timeline.spans)


@given(st.data(), dependencies(), st.integers(1, 5), st.booleans())
def test_every_schedule_can_be_carried_out(
    data: st.DataObject, before: Dependencies, executors: int, stay: bool
) -> None:
    costs = data.draw(listed(st.integers(0, 9), before))
    levels = critical_path(before, costs).levels
    priority = data.draw(st.sampled_from([None, levels]))
    scheduler = ListScheduler(before, executors, priority, stay)
    timeline = simulate_operators(scheduler, lambda start: costs[start.operator])
    check_carried_out(timeline, before)
    length = max(levels)  # Graham, Bounds on Multiprocessing Timing Anomalies, 1969
    assert max(length, sum(costs) / executors) <= end_ns(timeline)
    assert end_ns(timeline) <= (sum(costs) - length) / executors + length


# Three chains: the long one last in the order of numbers.
CHAINS: Dependencies = [[], [], [], [2], [3]]
COSTS = [3, 3, 2, 2, 2]


def test_the_critical_path_goes_first() -> None:
    levels = critical_path(CHAINS, COSTS).levels
    ends = {
        name: end_ns(simulate_operators(scheduler, lambda start: COSTS[start.operator]))
        for name, scheduler in (
            ("one queue", ListScheduler(CHAINS, 2)),
            ("critical path", ListScheduler(CHAINS, 2, levels)),
        )
    }
    assert ends == {"one queue": 9, "critical path": 6}


def test_operators_stay_where_what_they_read_was_made() -> None:
    # 0 and 1 end together: without the wish to stay, executor 0 takes what was made on 1.
    for stay, expected in ((True, [0, 1, 1]), (False, [0, 1, 0])):
        timeline = simulate_operators(ListScheduler([[], [], [1]], 2, stay=stay), lambda start: 2)
        places = by_operator(timeline)
        assert [places[index].place for index in range(3)] == [f"executor {executor}" for executor in expected]


def test_how_long_an_operator_takes_may_depend_on_where_it_runs() -> None:
    scheduler = OrderScheduler([[], []], [[0], [1]], threads=[2, 1])
    spans = by_operator(simulate_operators(scheduler, lambda start: 8 // start.threads, names=["mm", "add"]))
    assert [(span.name, span.duration_ns, span.details) for span in spans.values()] == [
        ("mm", 4, {"operator": 0, "threads": 2}),
        ("add", 8, {"operator": 1, "threads": 1}),
    ]


def test_an_operator_has_a_span_on_every_core_that_it_holds() -> None:
    scheduler = OrderScheduler([[], [], [], []], [[0, 2], [0], [1, 2], [], [], [3]], siblings=True)
    timeline = simulate_operators(scheduler, lambda start: 5)
    assert [(span.place, span.details["operator"], span.start_ns, span.end_ns) for span in timeline.spans] == [
        ("core 0", 0, 0, 5),
        ("core 1", 0, 0, 5),
        ("core 2", 1, 0, 5),
        ("core 2 thread 1", 3, 0, 5),
        ("core 0", 2, 5, 10),
        ("core 2", 2, 5, 10),
    ]


def test_a_time_below_zero_is_refused() -> None:
    with pytest.raises(SettingError, match="duration_ns must be at least 0, got -1"):
        simulate_operators(ListScheduler([[]], 1), lambda start: -1)
