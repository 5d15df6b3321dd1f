"""Cases of a machine, and those that stand for all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.costs.machine import Threads, cases, evenly, placements
from bow.errors import SettingError

MACHINES = [1, 2, 3, 6, 67, 68, 100]
"""Numbers of cores."""


def test_the_papers_machine_has_34_cases_with_one_thread_to_a_cache_and_34_with_two() -> None:
    alone, sharing = placements(68)
    assert [case.threads for case in alone] == list(range(1, 35))
    assert [case.threads for case in sharing] == list(range(2, 69, 2))
    assert not any(case.shared for case in alone)
    assert all(case.shared for case in sharing)
    assert len(cases(68)) == 68


@pytest.mark.parametrize("cores", MACHINES)
def test_no_case_needs_more_cores_or_caches_than_there_are(cores: int) -> None:
    found = cases(cores)
    assert len(set(found)) == len(found)
    assert all(case.threads <= cores if case.shared else 2 * case.threads <= cores + 1 for case in found)


@given(st.data(), st.integers(2, 100))
def test_cases_that_stand_for_all_are_spread_over_both_lanes(data: st.DataObject, cores: int) -> None:
    both = placements(cores)
    count = data.draw(st.integers(1, 2 * min(map(len, both))))
    chosen = evenly(both, count)
    assert len(set(chosen)) == count
    sharing = [case.threads for case in chosen if case.shared]
    assert len(sharing) == (count + 1) // 2
    gaps = {later - earlier for earlier, later in itertools.pairwise(sharing)}
    assert not gaps or max(gaps) - min(gaps) <= 2  # one case


def test_one_case_stands_in_the_middle() -> None:
    assert evenly(placements(68), 1) == (Threads(36, shared=True),)


@pytest.mark.parametrize("count", [0, 5])
def test_a_number_of_cases_that_does_not_fit_is_refused(count: int) -> None:
    with pytest.raises(SettingError, match=f"count must be at least 1 and fit the 4 cases, got {count}"):
        evenly(placements(4), count)
