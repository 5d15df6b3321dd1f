"""Critical paths, against all paths that there are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import ScheduleError
from bow.schedule.scheduler import critical_path
from bow.schedule.scheduler.protocol import followers, topological
from tests.schedule.scheduler.graphs import Dependencies, dependencies


def longest(before: Dependencies, costs: list[int], operator: int) -> int:
    """From an operator's start to the end of the step, by trying every way."""
    return costs[operator] + max((longest(before, costs, later) for later in followers(before)[operator]), default=0)


@given(st.data(), dependencies(most=10))
def test_levels_are_the_longest_times_to_the_end(data: st.DataObject, before: Dependencies) -> None:
    costs = data.draw(st.lists(st.integers(0, 9), min_size=len(before), max_size=len(before)))
    found = critical_path(before, costs)
    assert list(found.levels) == [longest(before, costs, index) for index in range(len(before))]
    assert found.length == max(found.levels)
    assert sum(costs[index] for index in found.path) == found.length
    assert all(earlier in before[later] for earlier, later in itertools.pairwise(found.path))
    assert found.total == sum(costs)


@given(dependencies())
def test_an_operator_comes_behind_what_it_depends_on(before: Dependencies) -> None:
    order = topological(before)
    assert sorted(order) == list(range(len(before)))
    assert all(order.index(earlier) < order.index(index) for index, those in enumerate(before) for earlier in those)


def test_nothing_takes_no_time() -> None:
    found = critical_path([], [])
    assert (found.length, found.path, found.parallelism) == (0, (), 1.0)


@pytest.mark.parametrize(
    ("before", "costs", "message"),
    [
        ([[], []], [1], "1 costs for 2 operators"),
        ([[]], [-1], "a cost must be at least 0, got -1 for operator 0"),
        ([[]], [float("nan")], "a cost must be at least 0, got nan for operator 0"),
        ([[1], [0]], [1, 1], "operator 0 is on a dependency cycle"),
    ],
    ids=["few", "negative", "nan", "circle"],
)
def test_what_has_no_critical_path_is_refused(before: Dependencies, costs: list[float], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        critical_path(before, costs)
