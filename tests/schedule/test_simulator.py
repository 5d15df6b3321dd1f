"""Operators in simulated time, whatever the scheduler: nothing too early, nothing twice, nothing lost."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bow.errors import SettingError
from bow.schedule import Span, Timeline
from bow.schedule.scheduler import CoRunScheduler, ListScheduler, Start, critical_path
from bow.schedule.simulator import simulate_operators
from tests.schedule.replay import OrderScheduler
from tests.schedule.scheduler.graphs import Dependencies, dependencies, listed, times
from tests.schedule.scheduler.watching import Moment, check_carried_out


def by_operator(timeline: Timeline) -> dict[int, Span]:
    spans = {int(span.details["operator"]): span for span in timeline.spans}
    assert len(spans) == len(timeline.spans)
    return spans


def end_ns(timeline: Timeline) -> int:
    return max(span.end_ns for span in timeline.spans)


@given(st.data(), dependencies(), st.integers(1, 5), st.booleans(), st.sampled_from([0, 3]))
def test_every_schedule_can_be_carried_out(
    data: st.DataObject, before: Dependencies, executors: int, stay: bool, dispatch_ns: int
) -> None:
    costs = data.draw(listed(st.integers(0, 9), before))
    levels = critical_path(before, costs).levels
    priority = data.draw(st.sampled_from([None, levels]))
    scheduler = ListScheduler(before, executors, priority, stay)
    timeline = simulate_operators(scheduler, lambda start: costs[start.operator], dispatch_ns=dispatch_ns)
    check_carried_out(timeline, before)
    if not dispatch_ns:  # Graham, Bounds on Multiprocessing Timing Anomalies, 1969
        length = max(levels)
        assert max(length, sum(costs) / executors) <= end_ns(timeline)
        assert end_ns(timeline) <= (sum(costs) - length) / executors + length


def test_a_scheduler_begins_every_step_anew() -> None:
    scheduler = ListScheduler([[], [0], [0]], executors=2)
    first = simulate_operators(scheduler, lambda start: start.operator + 1)
    assert simulate_operators(scheduler, lambda start: start.operator + 1).spans == first.spans


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
    before: Dependencies = [[], [], [1], [0]]
    costs = [4, 3, 3, 3]
    for stay, expected in ((True, [0, 1, 1, 0]), (False, [0, 1, 1, 0])):
        scheduler = ListScheduler(before, 2, stay=stay)
        spans = by_operator(simulate_operators(scheduler, lambda start: costs[start.operator]))
        assert [spans[index].place for index in range(4)] == [f"executor {executor}" for executor in expected]
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


@pytest.mark.parametrize(("polling", "starts"), [(1, [2, 4, 6]), (3, [6, 12, 18]), (0, [0, 0, 0])])
def test_the_contention_of_one_queue_delays_starts_one_behind_another(polling: int, starts: list[int]) -> None:
    timeline = simulate_operators(ListScheduler([[]] * 3, 3), lambda start: 30, dispatch_ns=2, polling=polling)
    assert [span.start_ns for span in timeline.spans] == starts


def test_operators_on_the_same_core_slow_each_other_down_while_both_run() -> None:
    # 0 holds both cores; 1 and then 2 run beside it on the second hardware thread of core 1; 3 comes behind 0.
    scheduler = OrderScheduler([[], [], [], [0]], [[0, 3], [0], [], [1, 2]], siblings=True)
    timeline = simulate_operators(scheduler, lambda start: [100, 10, 50, 7][start.operator], siblings_factor=1.5)
    spans = {int(span.details["operator"]): (span.start_ns, span.end_ns) for span in timeline.spans}
    # Until 15 + 75 the operator on both cores has done 60 of 100.
    assert spans == {0: (0, 130), 1: (0, 15), 2: (15, 90), 3: (130, 137)}


def by_the_tick(scheduler: CoRunScheduler, duration: dict[int, int], before: Dependencies, factor: Fraction) -> Any:
    """Starts and ends, by letting one nanosecond pass after the other; every operator takes at least one."""
    moment, now = Moment(before), 0
    left: dict[int, Fraction] = {}
    found: dict[int, list[int]] = {}

    def carry_out(starts: list[Start]) -> None:
        for start in starts:
            moment.carry_out(start)
            left[start.operator] = Fraction(duration[start.operator])
            found[start.operator] = [now]

    carry_out(scheduler.start(now))
    while left:
        held = {(core, start.sibling) for start in moment.running.values() for core in start.cores}
        for operator in left:
            start = moment.running[operator]
            shares = any((core, not start.sibling) in held for core in start.cores)
            left[operator] -= 1 / factor if shares else 1
        now += 1
        for operator in sorted(each for each, rest in left.items() if rest <= 0):
            del left[operator]
            found[operator].append(now)
            moment.hear(operator)
            carry_out(scheduler.finished(operator, now))
    return {operator: tuple(when) for operator, when in found.items()}


@settings(max_examples=40)
@given(st.data(), dependencies(most=10), st.sampled_from([Fraction(1), Fraction(13, 10), Fraction(2)]))
def test_slowing_down_is_the_same_as_one_nanosecond_after_the_other(
    data: st.DataObject, before: Dependencies, factor: Fraction
) -> None:
    predicted = data.draw(times(before, cores=3, least=1))
    duration = dict(enumerate(data.draw(listed(st.integers(1, 30), before))))
    arguments: dict[str, Any] = {"kinds": ["any"] * len(before), "cores": 3, "strategy": 4, "hardware_threads": 2}
    timeline = simulate_operators(
        CoRunScheduler(before, predicted, **arguments),
        lambda start: duration[start.operator],
        siblings_factor=float(factor),
    )
    check_carried_out(timeline, before)
    spans = {int(span.details["operator"]): (span.start_ns, span.end_ns) for span in timeline.spans}
    assert spans == by_the_tick(CoRunScheduler(before, predicted, **arguments), duration, before, factor)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dispatch_ns": -1}, "dispatch_ns and polling must be at least 0, got -1 in all"),
        ({"siblings_factor": 0.5}, "siblings_factor must be at least 1, got 0.5"),
        ({"siblings_factor": float("nan")}, "siblings_factor must be at least 1, got nan"),
        ({"duration_ns": lambda start: -1}, "duration_ns must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        simulate_operators(ListScheduler([[]], 1), **{"duration_ns": lambda start: 1, **arguments})
