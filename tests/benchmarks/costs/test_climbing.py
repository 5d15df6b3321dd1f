"""Hill climbing finds what is best on convex curves, and measures little."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.costs.climbing import HillClimb
from benchmarks.costs.machine import Threads, cases, placements
from bow.errors import SettingError

# Time of n threads: work / n + overhead * n, which is convex.
convex = st.tuples(st.floats(0.1, 1000.0), st.floats(0.0, 10.0))


def time_s(curve: tuple[float, float], case: Threads) -> float:
    work, overhead = curve
    return (0.9 if case.shared else 1.0) * (work / case.threads + overhead * case.threads)


def climbed(curve: tuple[float, float], climb: HillClimb) -> HillClimb:
    while (case := climb.next_placement()) is not None:
        assert climb.next_placement() == case
        climb.report(case, time_s(curve, case))
    return climb


@given(convex, st.integers(1, 80))
def test_with_interval_1_the_optimum_of_a_convex_curve_is_found(curve: tuple[float, float], cores: int) -> None:
    climb = climbed(curve, HillClimb(cores, interval=1))
    best = min(time_s(curve, case) for case in cases(cores))
    assert time_s(curve, climb.best) == best


@given(convex, st.data(), st.integers(1, 80))
def test_no_more_cases_are_measured_than_the_paper_says(
    curve: tuple[float, float], data: st.DataObject, cores: int
) -> None:
    interval = data.draw(st.integers(1, cores))
    climb = climbed(curve, HillClimb(cores, interval))
    assert 1 <= len(climb.measured) <= math.ceil(2 * cores / interval)


@given(convex, st.data(), st.integers(2, 80))
def test_each_lane_ends_where_time_has_risen_or_threads_have_run_out(
    curve: tuple[float, float], data: st.DataObject, cores: int
) -> None:
    interval = data.draw(st.integers(1, cores))
    climb = climbed(curve, HillClimb(cores, interval))
    for lane in placements(cores):
        found = sorted(case for case in climb.measured if case.shared == lane[0].shared)
        times = [climb.measured[case] for case in found]
        steps = [later.threads - earlier.threads for earlier, later in itertools.pairwise(found)]
        assert found[0] == lane[0]
        assert all(interval <= step for step in steps)
        assert all(step <= interval + 1 for step in steps[:-1])
        assert all(earlier >= later for earlier, later in itertools.pairwise(times[:-1]))
        # A lane that is shorter than a step has one case only.
        assert found[-1] == lane[-1] or len(times) == 1 or times[-1] > times[-2]


def test_a_climb_ends_behind_the_first_rise_and_the_best_is_the_case_before() -> None:
    climb = HillClimb(18, interval=2)
    sharing = {Threads(2, shared=True): 20.0, Threads(4, shared=True): 21.0}
    times = {Threads(1): 9.0, Threads(3): 5.0, Threads(5): 6.0, **sharing}
    for case in sorted(times):
        assert climb.next_placement() == case
        climb.report(case, times[case])
    assert climb.next_placement() is None
    assert climb.best == Threads(3)
    assert climb.measured == times


def test_a_plateau_is_crossed() -> None:
    climb = HillClimb(8, interval=1)
    times = {Threads(n): seconds for n, seconds in enumerate([3.0, 2.0, 2.0, 1.0], 1)}
    times |= {Threads(2, shared=True): 8.0, Threads(4, shared=True): 9.0}
    for case in sorted(times):
        climb.report(case, times[case])
    assert climb.best == Threads(4)


def test_both_ways_to_share_caches_are_climbed_side_by_side() -> None:
    climb = HillClimb(68, interval=16)
    asked = []
    while (case := climb.next_placement()) is not None:
        asked.append(case)
        climb.report(case, 1 / case.threads)
    alone, sharing = ([case.threads for case in asked if case.shared is shared] for shared in (False, True))
    assert alone == [1, 17, 34]
    assert sharing == [2, 18, 34, 50, 68]
    assert asked == sorted(asked)


@pytest.mark.parametrize("interval", [0, 9])
def test_an_interval_that_makes_no_step_is_refused(interval: int) -> None:
    with pytest.raises(SettingError, match=f"interval must be at least 1 and at most 8 threads, got {interval}"):
        HillClimb(8, interval)
