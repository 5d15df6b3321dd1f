"""Lists of ready operators: by priority, on executors that are free."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import ScheduleError
from bow.schedule import Timeline
from bow.schedule.scheduler import ListScheduler, Start, critical_path
from tests.schedule.scheduler.graphs import Dependencies, dependencies, grid, listed
from tests.schedule.scheduler.list_rules import check_options, run
from tests.schedule.scheduler.watching import Moment, Watched, check_carried_out


@st.composite
def options(draw: st.DrawFn, before: Dependencies) -> dict[str, Any]:
    """Arguments of a ListScheduler, any of them left out."""
    executors = draw(st.integers(1, 4))
    chosen = {
        "priority": draw(listed(st.integers(0, 5), before)),
        "stay": True,
        "small": draw(st.sets(st.sampled_from(range(len(before))))),
    }
    names = draw(st.sets(st.sampled_from(sorted(chosen))))
    return {"dependencies": before, "executors": executors, **{name: chosen[name] for name in names}}


@given(st.data(), dependencies())
def test_operators_are_given_out_by_the_rules_whatever_the_options(data: st.DataObject, before: Dependencies) -> None:
    check_options(ListScheduler, data.draw(options(before)), data.draw(listed(st.integers(0, 9), before)))


@given(dependencies(), st.data(), st.integers(1, 4))
def test_the_critical_path_goes_first_and_nobody_waits_for_work(
    before: Dependencies, data: st.DataObject, executors: int
) -> None:
    costs = data.draw(listed(st.integers(0, 9), before))
    levels = critical_path(before, costs).levels
    watched = Watched(ListScheduler(before, executors, levels))
    run(watched, costs)
    moment = Moment(before)
    for event in watched.events:
        moment.hear(event.finished)
        for start in event.starts:
            assert levels[start.operator] == max(levels[each] for each in moment.ready)
            moment.carry_out(start)
        assert not moment.ready or len(moment.running) == executors


def diagonals_apart(timeline: Timeline, steps: int) -> int:
    """How far apart the anti-diagonals are of cells that run at the same time."""
    cells = [(span.start_ns, span.end_ns, sum(divmod(int(span.details["operator"]), steps))) for span in timeline.spans]
    together = ((a, b) for a, b in itertools.combinations(cells, 2) if a[0] < b[1] and b[0] < a[1])
    return max((abs(a[2] - b[2]) for a, b in together), default=0)


# Up to four layers, as in the paper. What ends in the same moment is heard of one after another, and an executor is
# given work in between: with 6 layers of 5 steps on 3 executors that leads off the diagonals.
@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 12))
def test_the_critical_path_runs_the_cells_of_an_lstm_in_diagonals(layers: int, steps: int, executors: int) -> None:
    before = grid(layers, steps)
    costs = [10] * len(before)
    timeline = run(ListScheduler(before, executors, critical_path(before, costs).levels), costs)
    check_carried_out(timeline, before)
    assert diagonals_apart(timeline, steps) <= 1
    if executors >= min(layers, steps):
        assert max(span.end_ns for span in timeline.spans) == 10 * (layers + steps - 1)


def test_one_queue_leaves_the_diagonals() -> None:
    before = grid(layers=4, steps=12)
    assert diagonals_apart(run(ListScheduler(before, executors=3), [10] * len(before)), steps=12) == 5


def test_small_operators_run_where_they_become_ready_before_anything_else() -> None:
    # 0 makes 1 and 2 ready, which are small, and 3, which is not; 1 makes 4 ready, also small.
    before: Dependencies = [[], [0], [0], [0], [1], []]
    scheduler = ListScheduler(before, executors=2, priority=[9, 0, 0, 5, 0, 7], small={1, 2, 4})
    assert scheduler.start() == [Start(0, 0), Start(5, 1)]
    assert scheduler.finished(0) == [Start(1, 0)]
    assert scheduler.finished(1) == [Start(2, 0)]
    assert scheduler.finished(5) == [Start(3, 1)]
    assert scheduler.finished(2) == [Start(4, 0)]
    assert scheduler.finished(4) == []
    assert scheduler.finished(3) == []
    assert scheduler.done


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"executors": 0}, "at least 1 executor, got 0"),
        ({"priority": [1.0]}, "1 priorities for 2 operators"),
        ({"small": [2]}, "operator 2 is listed in small, and the last one is 1"),
        ({"small": [-1]}, "operator -1 is listed in small"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        ListScheduler(**{"dependencies": [[], []], "executors": 2, **arguments})
