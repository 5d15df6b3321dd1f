"""Operators in simulated time where a queue is contended, and hardware threads share cores."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.manycore.simulator import simulate_operators
from bow.schedule.scheduler import CoRunScheduler, ListScheduler, Start
from bow.schedule.scheduler.protocol import simulate_operators as plain
from tests.schedule.replay import OrderScheduler
from tests.schedule.scheduler.graphs import Dependencies, dependencies, listed, times
from tests.schedule.scheduler.watching import Moment, check_carried_out


@given(dependencies(), st.integers(1, 5), st.sampled_from([0, 3]))
def test_every_schedule_can_be_carried_out_however_long_giving_out_takes(
    before: Dependencies, executors: int, dispatch_ns: int
) -> None:
    timeline = simulate_operators(ListScheduler(before, executors), lambda start: 5, dispatch_ns=dispatch_ns)
    check_carried_out(timeline, before)
    if not dispatch_ns:
        assert timeline == plain(ListScheduler(before, executors), lambda start: 5)


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


@given(st.data(), dependencies(most=10), st.sampled_from([Fraction(1), Fraction(13, 10), Fraction(2)]))
def test_slowing_down_is_the_same_as_one_nanosecond_after_the_other(
    data: st.DataObject, before: Dependencies, factor: Fraction
) -> None:
    predicted = data.draw(times(before, cores=3, least=1))
    duration = dict(enumerate(data.draw(listed(st.integers(1, 30), before))))
    arguments: dict[str, Any] = {"kinds": ["any"] * len(before), "cores": 3, "strategy": 4}
    timeline = simulate_operators(
        CoRunScheduler(before, predicted, **arguments),
        lambda start: duration[start.operator],
        siblings_factor=float(factor),
    )
    check_carried_out(timeline, before)
    spans = {int(span.details["operator"]): (span.start_ns, span.end_ns) for span in timeline.spans}
    assert spans == by_the_tick(CoRunScheduler(before, predicted, **arguments), duration, before, factor)
