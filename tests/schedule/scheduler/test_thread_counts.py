"""Numbers of threads from predicted times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bow.schedule.scheduler.corun import best_threads, candidates, threads_by_kind

TIMES = st.dictionaries(st.integers(1, 20), st.integers(0, 5), min_size=1)


@given(TIMES, st.integers(1, 5))
def test_candidates_are_the_fastest_and_of_equal_ones_those_with_fewer_threads(
    times: dict[int, int], count: int
) -> None:
    found = candidates(times, count)
    assert len(found) == min(count, len(times))
    assert best_threads(times) == found[0]
    order = [(times[threads], threads) for threads in found]
    assert order == sorted(order)
    assert all((times[other], other) > order[-1] for other in times.keys() - set(found))


def test_a_type_has_the_number_of_its_most_time_consuming_instance() -> None:
    # By their least times: 30 with 4 threads, whatever they take with one.
    times = [{1: 90, 4: 20}, {1: 40, 4: 30}, {1: 30, 4: 35}, {1: 7, 4: 7}]
    assert threads_by_kind(times, ["conv", "conv", "conv", "add"]) == {"conv": 4, "add": 1}
    assert threads_by_kind(times[1:], ["conv", "conv", "add"]) == {"conv": 4, "add": 1}  # equal: the first
