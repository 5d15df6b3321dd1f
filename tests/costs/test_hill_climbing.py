"""Hill climbing finds what is best on convex curves, measures little, and interpolates what it has not measured."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bow.costs import Case, Curve, HillClimb, HillClimbing, Saturation, accuracy, candidates, cases, lanes
from bow.errors import SettingError

# Time of n threads: work / n + overhead * n, which is convex.
convex = st.tuples(st.floats(0.1, 1000.0), st.floats(0.0, 10.0))


def time_s(curve: tuple[float, float], case: Case) -> float:
    work, overhead = curve
    return (0.9 if case.shared else 1.0) * (work / case.threads + overhead * case.threads)


def climbed(curve: tuple[float, float], climb: HillClimb) -> HillClimb:
    while (case := climb.next_case()) is not None:
        assert climb.next_case() == case
        climb.report(case, time_s(curve, case))
    return climb


@settings(max_examples=40)
@given(convex, st.integers(1, 80), st.booleans())
def test_with_interval_1_the_optimum_of_a_convex_curve_is_found(
    curve: tuple[float, float], cores: int, caches: bool
) -> None:
    climb = climbed(curve, HillClimb(cores, interval=1, caches=caches))
    best = min(time_s(curve, case) for case in cases(cores, caches))
    assert time_s(curve, climb.best) == best


@settings(max_examples=40)
@given(convex, st.data(), st.integers(1, 80), st.booleans())
def test_no_more_cases_are_measured_than_the_paper_says(
    curve: tuple[float, float], data: st.DataObject, cores: int, caches: bool
) -> None:
    interval = data.draw(st.integers(1, cores))
    climb = climbed(curve, HillClimb(cores, interval, caches))
    assert 1 <= len(climb.measured) <= math.ceil(2 * cores / interval)


@settings(max_examples=40)
@given(convex, st.data(), st.integers(2, 80), st.booleans())
def test_each_lane_ends_where_time_has_risen_or_threads_have_run_out(
    curve: tuple[float, float], data: st.DataObject, cores: int, caches: bool
) -> None:
    interval = data.draw(st.integers(1, cores))
    climb = climbed(curve, HillClimb(cores, interval, caches))
    for lane in lanes(cores, caches):
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
    times = {1: 9.0, 3: 5.0, 5: 6.0}
    climb = HillClimb(9, interval=2, caches=False)
    for threads, seconds in times.items():
        assert climb.next_case() == Case(threads)
        climb.report(Case(threads), seconds)
    assert climb.next_case() is None
    assert climb.best == Case(3)
    assert climb.measured == {Case(threads): seconds for threads, seconds in times.items()}


def test_a_plateau_is_crossed() -> None:
    climb = HillClimb(4, interval=1, caches=False)
    for case, seconds in zip(map(Case, range(1, 5)), [3.0, 2.0, 2.0, 1.0], strict=True):
        climb.report(case, seconds)
    assert climb.best == Case(4)


def test_both_ways_to_share_caches_are_climbed_side_by_side() -> None:
    climb = HillClimb(68, interval=16)
    asked = []
    while (case := climb.next_case()) is not None:
        asked.append(case)
        climb.report(case, 1 / case.threads)
    alone, sharing = ([case.threads for case in asked if case.shared is shared] for shared in (False, True))
    assert alone == [1, 17, 34]
    assert sharing == [2, 18, 34, 50, 68]
    assert asked == sorted(asked)


@settings(max_examples=40)
@given(st.dictionaries(st.builds(Case, st.integers(1, 40)), st.floats(0.0, 1e3), min_size=1))
def test_a_curve_is_exact_where_it_was_measured_and_between_its_neighbours_elsewhere(
    measured: dict[Case, float],
) -> None:
    curve = Curve(measured)
    lane = sorted(measured)
    for threads in range(1, 42):
        case = Case(threads)
        below = [measured[other] for other in lane if other <= case]
        above = [measured[other] for other in lane if other >= case]
        ends = [*below[-1:], *above[:1]]
        assert min(ends) - 1e-9 <= curve.time_s(case) <= max(ends) + 1e-9
        assert curve.reaches(case) == bool(below and above)
        if case in measured:
            assert curve.time_s(case) == measured[case]


def test_lines_are_straight_as_in_the_papers_example() -> None:
    curve = Curve({Case(1): 8.0, Case(4): 2.0})
    assert [curve.time_s(Case(threads)) for threads in (2, 3)] == pytest.approx([6.0, 4.0])


def test_lanes_know_nothing_of_each_other() -> None:
    curve = Curve({Case(1): 8.0, Case(2, shared=True): 1.0, Case(4, shared=True): 3.0})
    assert curve.time_s(Case(2)) == 8.0
    assert curve.time_s(Case(3 + 1, shared=True)) == 3.0
    assert curve.time_s(Case(68, shared=True)) == 3.0


def test_predictions_of_what_was_not_measured_are_close_on_a_curve_that_scales() -> None:
    climb = HillClimb(64, interval=2, caches=False)
    times = {case: 1.0 / case.threads + 0.001 for case in cases(64, caches=False)}
    while (case := climb.next_case()) is not None:
        climb.report(case, times[case])
    unseen = [case for case in times if case not in climb.measured]
    assert len(unseen) == 32
    assert accuracy([climb.curve.time_s(case) for case in unseen], [times[case] for case in unseen]) > 0.98


@settings(max_examples=40)
@given(st.integers(2, 16), st.lists(convex, min_size=1, max_size=5))
def test_many_operators_climb_as_each_would_by_itself(interval: int, curves: list[tuple[float, float]]) -> None:
    names = [str(index) for index in range(len(curves))]
    model = HillClimbing(names, 32, interval)
    while (case := model.next_case()) is not None:
        wanting = model.wanting(case)
        assert wanting
        model.report(case, {name: time_s(curves[int(name)], case) for name in wanting})
    longest = 0
    for name in names:
        alone = climbed(curves[int(name)], HillClimb(32, interval))
        assert model.best(name) == alone.best
        assert all(model.time_s(name, case) == alone.curve.time_s(case) for case in cases(32))
        longest = max(longest, len(alone.measured))
    assert longest <= model.steps <= math.ceil(2 * 32 / interval)


def test_candidates_of_a_climb_begin_with_the_best() -> None:
    machine = Saturation()
    model = HillClimbing(["conv"], 68, interval=4)
    while (case := model.next_case()) is not None:
        model.report(case, {"conv": machine.time_s(6e8, 7e6, "aten.convolution.default", case)})
    chosen = candidates(model, "conv", cases(68))
    assert chosen[0] == model.best("conv")
    assert len(chosen) == 3


@pytest.mark.parametrize("interval", [0, 9])
def test_an_interval_that_makes_no_step_is_refused(interval: int) -> None:
    with pytest.raises(SettingError, match=f"interval must be at least 1 and at most 8 threads, got {interval}"):
        HillClimb(8, interval)


def test_what_was_not_asked_for_is_refused() -> None:
    climb = HillClimb(4, 1)
    with pytest.raises(SettingError, match="nothing was measured yet"):
        _ = climb.best
    with pytest.raises(SettingError, match="needs at least 1 measurement"):
        _ = climb.curve
    with pytest.raises(SettingError, match="asked for is 1 thread, got 2 threads"):
        climb.report(Case(2), 1.0)
    with pytest.raises(SettingError, match="seconds must be finite and at least 0, got nan"):
        climb.report(Case(1), math.nan)
    with pytest.raises(SettingError, match=r"a time must be finite and at least 0, got -1\.0 for 1 thread"):
        Curve({Case(1): -1.0})
    with pytest.raises(SettingError, match="no case with two threads to a cache was measured"):
        Curve({Case(1): 1.0}).time_s(Case(2, shared=True))


def test_steps_have_to_tell_of_all_that_climb() -> None:
    model = HillClimbing(["a", "b"], 4, 1, caches=False)
    with pytest.raises(SettingError, match="asked for is 1 thread, got 2 threads"):
        model.report(Case(2), {"a": 1.0, "b": 1.0})
    with pytest.raises(SettingError, match="no time of 'b' with 1 thread"):
        model.report(Case(1), {"a": 1.0})
    assert model.steps == 0
    with pytest.raises(SettingError, match="'c' was never measured"):
        model.best("c")
