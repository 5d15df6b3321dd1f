"""Lists of ready operators: by priority, on the executors that suit them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bow.errors import ScheduleError
from bow.schedule import Timeline
from bow.schedule.scheduler import ListScheduler, Start, critical_path
from bow.schedule.simulator import simulate_operators
from tests.schedule.scheduler.graphs import Dependencies, dependencies, grid, listed
from tests.schedule.scheduler.watching import Moment, Watched, check_carried_out


@st.composite
def options(draw: st.DrawFn, before: Dependencies) -> dict[str, Any]:
    """Arguments of a ListScheduler, any of them left out."""
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


def run(scheduler: Watched | ListScheduler, costs: list[int]) -> Timeline:
    return simulate_operators(scheduler, lambda start: costs[start.operator])


@settings(max_examples=40)
@given(st.data(), dependencies())
def test_every_option_gives_a_schedule_that_can_be_carried_out(data: st.DataObject, before: Dependencies) -> None:
    arguments = data.draw(options(before))
    costs = data.draw(listed(st.integers(0, 9), before))
    scheduler = ListScheduler(**arguments)
    timeline = run(scheduler, costs)
    check_carried_out(timeline, before)
    assert run(scheduler, costs) == timeline == run(ListScheduler(**arguments), costs)


class Rules:
    """What the arguments promise, worked out from sets and in the plainest way."""

    def __init__(
        self,
        dependencies: Dependencies,
        executors: int,
        priority: list[int] | None = None,
        stay: bool = False,
        small: frozenset[int] = frozenset(),
        light: bool = False,
        threads: list[int] | None = None,
        prefers: list[int] | None = None,
        open: Callable[[int], int] = lambda finished: 1_000_000,
    ) -> None:
        self.moment = Moment(dependencies)
        self.executors, self.priority, self.stay, self.small, self.light = executors, priority, stay, small, light
        self.threads = threads or [1] * executors
        self.prefers, self.open = prefers, open
        self.made_by = dict.fromkeys(self.moment.ready, executors if light else None)
        self.at_once: dict[int | None, list[int]] = {}

    def expected(self, finished: int | None) -> list[Start]:
        """What starts when an operator has finished, or none has."""
        executor = self.executors if self.light else None
        if finished is not None:
            executor = self.moment.running[finished].executor
            known = set(self.moment.ready)
            self.moment.hear(finished)
            self.made_by |= {each: executor for each in self.moment.ready if each not in known}
        for each in list(self.moment.ready):
            if self.made_by[each] is not None and each in self.small:
                self.moment.ready.remove(each)
                self.at_once.setdefault(self.made_by[each], []).append(each)
        starts = []
        if own := self.at_once.get(executor):
            threads = self.threads[executor] if executor < self.executors else 1
            starts.append(self._carried_out(Start(own.pop(0), executor, threads)))
        while self.moment.ready and (free := self._free()):
            starts.append(self._carried_out(self._next(free)))
        return starts

    def _next(self, free: set[int]) -> Start:
        operator = self.moment.ready[0]
        if self.priority is not None:
            operator = max(self.moment.ready, key=lambda each: (self.priority[each], -each))
        if self.prefers is not None:
            wanted = sorted(set(self.threads))[self.prefers[operator]]
            free = {each for each in free if self.threads[each] == wanted} or free
        stays = self.stay and self.made_by[operator] in free
        executor = self.made_by[operator] if stays else min(free)
        return Start(operator, executor, self.threads[executor])

    def _free(self) -> set[int]:
        opened = set(range(min(self.executors, self.open(len(self.moment.finished)))))
        return opened - {start.executor for start in self.moment.running.values()}

    def _carried_out(self, start: Start) -> Start:
        self.moment.running[start.operator] = start
        if start.operator in self.moment.ready:  # small ones no longer are
            self.moment.ready.remove(start.operator)
        return start


@settings(max_examples=40)
@given(st.data(), dependencies())
def test_operators_are_given_out_by_priority_and_to_the_executors_that_suit_them(
    data: st.DataObject, before: Dependencies
) -> None:
    arguments = data.draw(options(before))
    watched = Watched(ListScheduler(**arguments))
    run(watched, data.draw(listed(st.integers(0, 9), before)))
    rules = Rules(**arguments)
    for event in watched.events:
        assert event.starts == rules.expected(event.finished)


@settings(max_examples=40)
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


def test_the_light_executor_takes_small_operators_that_nothing_made_ready() -> None:
    before: Dependencies = [[], [], [0], [], [2], [0]]
    small = {0, 1, 2}
    scheduler = ListScheduler(before, executors=1, small=small, light=True, threads=[4])
    assert scheduler.start() == [Start(0, 1), Start(3, 0, threads=4)]
    assert scheduler.finished(0) == [Start(1, 1)]  # 5 waits for an executor that is not light
    assert scheduler.finished(1) == [Start(2, 1)]
    assert scheduler.finished(2) == []
    assert scheduler.finished(3) == [Start(5, 0, threads=4)]
    without = ListScheduler(before, executors=1, small=small, threads=[4])
    assert without.start() == [Start(0, 0, threads=4)]


def test_an_operator_goes_to_an_executor_of_its_class_or_to_any_other() -> None:
    threads, prefers = [2, 6, 2], [1, 1, 0, 0]
    scheduler = ListScheduler([[], [], [], []], executors=3, threads=threads, prefers=prefers)
    assert scheduler.start() == [Start(0, 1, threads=6), Start(1, 0, threads=2), Start(2, 2, threads=2)]
    assert scheduler.finished(0) == [Start(3, 1, threads=6)]


def test_more_executors_open_when_the_backward_pass_begins() -> None:
    # Two forward operators, of which the second makes four backward operators ready.
    before: Dependencies = [[], [0], [1], [1], [1], [1]]
    scheduler = ListScheduler(before, executors=3, open=lambda finished: 1 if finished < 2 else 3)
    assert scheduler.start() == [Start(0, 0)]
    assert scheduler.finished(0) == [Start(1, 0)]
    assert scheduler.finished(1) == [Start(2, 0), Start(3, 1), Start(4, 2)]


def test_an_executor_beyond_the_open_ones_finishes_what_it_has_and_takes_no_more() -> None:
    scheduler = ListScheduler([[]] * 4, executors=2, open=lambda finished: 2 if finished < 1 else 1)
    assert scheduler.start() == [Start(0, 0), Start(1, 1)]
    assert scheduler.finished(1) == []
    assert scheduler.finished(0) == [Start(2, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"executors": 0}, "at least 1 executor, got 0"),
        ({"priority": [1.0]}, "1 priorities for 2 operators"),
        ({"threads": [1]}, "1 numbers of threads for 2 executors"),
        ({"threads": [1, 0]}, "threads must be at least 1, got 0 for executor 1"),
        ({"prefers": [0]}, "1 preferred classes for 2 operators"),
        ({"prefers": [0, 1]}, "operator 1 prefers class 1, and executors have 1 different numbers"),
        ({"prefers": [-1, 0]}, "operator 0 prefers class -1"),
        ({"small": [2]}, "operator 2 is called small, and there are 2"),
        ({"small": [-1]}, "operator -1 is called small"),
        ({"open": lambda finished: finished}, "open must give 1 to 2 executors, as many as there are, got 0"),
        ({"open": lambda finished: 3}, "got 3"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        ListScheduler(**{"dependencies": [[], []], "executors": 2, **arguments})
