"""Lists of ready operators, on executors of several sizes and numbers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.manycore.schedulers import TeamScheduler
from bow.schedule.scheduler import Start
from tests.schedule.scheduler.graphs import Dependencies, dependencies, listed
from tests.schedule.scheduler.list_rules import check_options


@st.composite
def options(draw: st.DrawFn, before: Dependencies) -> dict[str, Any]:
    """Arguments of a TeamScheduler, any of them left out."""
    executors = draw(st.integers(1, 4))
    threads = draw(st.lists(st.integers(1, 3), min_size=executors, max_size=executors))
    opened = draw(listed(st.integers(1, executors), [*before, []]))
    chosen = {
        "priority": draw(listed(st.integers(0, 5), before)),
        "stay": True,
        "small": draw(st.sets(st.sampled_from(range(len(before))))),
        "light": True,
        "threads": threads,
        "prefers": draw(listed(st.integers(0, len(set(threads)) - 1), before)),
        "open": opened.__getitem__,
    }
    names = draw(st.sets(st.sampled_from(sorted(chosen))))
    names |= {"threads"} if "prefers" in names else set()
    return {"dependencies": before, "executors": executors, **{name: chosen[name] for name in names}}


@given(st.data(), dependencies())
def test_operators_are_given_out_by_the_rules_whatever_the_options(data: st.DataObject, before: Dependencies) -> None:
    check_options(TeamScheduler, data.draw(options(before)), data.draw(listed(st.integers(0, 9), before)))


def test_the_light_executor_takes_small_operators_that_nothing_made_ready() -> None:
    before: Dependencies = [[], [], [0], [], [2], [0]]
    small = {0, 1, 2}
    scheduler = TeamScheduler(before, executors=1, small=small, light=True, threads=[4])
    assert scheduler.start() == [Start(0, 1), Start(3, 0, threads=4)]
    assert scheduler.finished(0) == [Start(1, 1)]  # 5 waits for an executor that is not light
    assert scheduler.finished(1) == [Start(2, 1)]
    assert scheduler.finished(2) == []
    assert scheduler.finished(3) == [Start(5, 0, threads=4)]
    without = TeamScheduler(before, executors=1, small=small, threads=[4])
    assert without.start() == [Start(0, 0, threads=4)]


def test_an_operator_goes_to_an_executor_of_its_class_or_to_any_other() -> None:
    threads, prefers = [2, 6, 2], [1, 1, 0, 0]
    scheduler = TeamScheduler([[], [], [], []], executors=3, threads=threads, prefers=prefers)
    assert scheduler.start() == [Start(0, 1, threads=6), Start(1, 0, threads=2), Start(2, 2, threads=2)]
    assert scheduler.finished(0) == [Start(3, 1, threads=6)]


def test_more_executors_open_when_the_backward_pass_begins() -> None:
    # Two forward operators, of which the second makes four backward operators ready.
    before: Dependencies = [[], [0], [1], [1], [1], [1]]
    scheduler = TeamScheduler(before, executors=3, open=lambda finished: 1 if finished < 2 else 3)
    assert scheduler.start() == [Start(0, 0)]
    assert scheduler.finished(0) == [Start(1, 0)]
    assert scheduler.finished(1) == [Start(2, 0), Start(3, 1), Start(4, 2)]


def test_an_executor_beyond_the_open_ones_finishes_what_it_has_and_takes_no_more() -> None:
    scheduler = TeamScheduler([[]] * 4, executors=2, open=lambda finished: 2 if finished < 1 else 1)
    assert scheduler.start() == [Start(0, 0), Start(1, 1)]
    assert scheduler.finished(1) == []
    assert scheduler.finished(0) == [Start(2, 0)]
