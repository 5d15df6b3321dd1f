"""Curves interpolate what a climb has not measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.costs.climbing import Curve, HillClimb, accuracy
from benchmarks.costs.machine import Threads, cases


@given(st.dictionaries(st.builds(Threads, st.integers(1, 40)), st.floats(0.0, 1e3), min_size=1))
def test_a_curve_is_exact_where_it_was_measured_and_between_its_neighbours_elsewhere(
    measured: dict[Threads, float],
) -> None:
    curve = Curve(measured)
    lane = sorted(measured)
    for threads in range(1, 42):
        case = Threads(threads)
        below = [measured[other] for other in lane if other <= case]
        above = [measured[other] for other in lane if other >= case]
        ends = [*below[-1:], *above[:1]]
        assert min(ends) - 1e-9 <= curve.time_s(case) <= max(ends) + 1e-9
        assert curve.reaches(case) == bool(below and above)
        if case in measured:
            assert curve.time_s(case) == measured[case]


def test_lines_are_straight_as_in_the_papers_example() -> None:
    curve = Curve({Threads(1): 8.0, Threads(4): 2.0})
    assert [curve.time_s(Threads(threads)) for threads in (2, 3)] == pytest.approx([6.0, 4.0])


def test_lanes_know_nothing_of_each_other() -> None:
    curve = Curve({Threads(1): 8.0, Threads(2, shared=True): 1.0, Threads(4, shared=True): 3.0})
    assert curve.time_s(Threads(2)) == 8.0
    assert curve.time_s(Threads(3 + 1, shared=True)) == 3.0
    assert curve.time_s(Threads(68, shared=True)) == 3.0


def test_predictions_of_what_was_not_measured_are_close_on_a_curve_that_scales() -> None:
    climb = HillClimb(128, interval=2)
    times = {case: 1.0 / case.threads + 0.001 for case in cases(128)}
    while (case := climb.next_placement()) is not None:
        climb.report(case, times[case])
    unseen = [case for case in times if case not in climb.measured]
    assert len(unseen) == 32
    assert accuracy([Curve(climb.measured).time_s(case) for case in unseen], [times[case] for case in unseen]) > 0.98
