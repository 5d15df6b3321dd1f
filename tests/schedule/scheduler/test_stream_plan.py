"""Plans for streams: everything is ordered, nobody waits for nothing, memory goes back as soon as it may."""

import itertools
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from bow.schedule.scheduler.stream_plan import START, PlannedTask, StreamPlan

END = -2
Edge = tuple[int, int]


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[tuple[int, int]], dict[int, list[int]], int]:
    """(stream, task) in the order of issue, dependencies, streams; numbers of tasks say nothing about their order."""
    num_streams = draw(st.integers(1, 4))
    tasks = draw(st.permutations(range(draw(st.integers(0, 12)))))
    dependencies = {
        task: draw(st.lists(st.sampled_from(tasks[:position]), max_size=4)) if position else []
        for position, task in enumerate(tasks)
    }
    return [(draw(st.integers(0, num_streams - 1)), task) for task in tasks], dependencies, num_streams


CASES = _cases()


def edges_of(tasks: Iterable[PlannedTask], join: Iterable[int]) -> tuple[list[Edge], list[Edge]]:
    """What runs before what: as streams run in order, and by waits."""
    last = {0: START}
    in_order, waits = [], []
    for issued in (*tasks, PlannedTask(END, 0, tuple(join))):
        if issued.stream in last:
            in_order.append((last[issued.stream], issued.task))
        waits.extend((task, issued.task) for task in issued.waits)
        last[issued.stream] = issued.task
    return in_order, waits


def behind(edges: Iterable[Edge], tasks: Iterable[int]) -> dict[int, set[int]]:
    """By task: all that is over before it begins. Tasks come in the order of issue, so one pass is enough."""
    before: dict[int, set[int]] = {task: set() for task in (START, *tasks, END)}
    direct: dict[int, list[int]] = {task: [] for task in before}
    for earlier, later in edges:
        direct[later].append(earlier)
    for task, others in direct.items():
        before[task].update(others, *(before[other] for other in others))
    return before


def is_ordered(before: dict[int, set[int]], dependencies: dict[int, list[int]]) -> bool:
    """Whether every task runs behind the start and what it depends on, and the end behind every task."""
    return all({START, *others} <= before[task] for task, others in dependencies.items()) and (
        set(dependencies) <= before[END]
    )


@given(CASES)
def test_everything_is_ordered_and_no_wait_can_be_left_out(case) -> None:
    order, dependencies, num_streams = case
    plan = StreamPlan.of(order, dependencies, num_streams)
    assert [(issued.stream, issued.task) for issued in plan.tasks] == order
    tasks = [task for _, task in order]
    in_order, waits = edges_of(plan.tasks, plan.join)
    assert is_ordered(behind(in_order + waits, tasks), dependencies)
    for wait in waits:
        left = [other for other in waits if other != wait]
        assert not is_ordered(behind(in_order + left, tasks), dependencies)


@given(CASES)
def test_the_waits_are_the_transitive_reduction_between_streams(case) -> None:
    order, dependencies, num_streams = case
    plan = StreamPlan.of(order, dependencies, num_streams)
    in_order, waits = edges_of(plan.tasks, plan.join)
    tasks = [task for _, task in order]
    needed = {(START, task) for task in tasks} | {(task, END) for task in tasks} | {(START, END)}
    needed |= {(other, task) for task, others in dependencies.items() for other in others}
    before = behind([*in_order, *needed], tasks)
    direct = {
        (earlier, later)
        for earlier, later in needed
        if not any(earlier in before[between] for between in before[later] if between != earlier)
    }
    assert sorted(waits) == sorted(direct - set(in_order))


@given(CASES)
def test_one_stream_waits_for_nothing(case) -> None:
    order, dependencies, _ = case
    plan = StreamPlan.of([(0, task) for _, task in order], dependencies, 1)
    assert not plan.awaited


@given(CASES, st.data())
def test_memory_goes_back_at_the_first_turn_that_knows_its_uses_to_be_over(case, data: st.DataObject) -> None:
    order, dependencies, num_streams = case
    plan = StreamPlan.of(order, dependencies, num_streams)
    tasks = [task for _, task in order]
    uses = {task: [task, *(reader for reader, others in dependencies.items() if task in others)] for task in tasks}
    allocations = [uses[task] for task in data.draw(st.permutations(tasks))]
    released = plan.releases(allocations)
    in_order, waits = edges_of(plan.tasks, plan.join)
    before = behind(in_order + waits, tasks)
    stream_of = {task: stream for stream, task in order}
    for allocation, used_by in enumerate(allocations):
        knowing = [
            position
            for position, (stream, task) in enumerate(order)
            if stream == stream_of[used_by[0]] and set(used_by) <= before[task] | {task}
        ]
        assert [position for position, gone in enumerate(released) if allocation in gone] == knowing[:1]


def test_a_stream_forks_from_the_start_only_where_no_other_wait_covers_it() -> None:
    plan = StreamPlan.of([(0, 0), (1, 1), (2, 2)], {0: [], 1: [0], 2: []}, num_streams=3)
    assert [issued.waits for issued in plan.tasks] == [(), (0,), (START,)]
    assert plan.join == (1, 2)
    assert plan.awaited == {START, 0, 1, 2}


def test_a_wait_covers_whatever_was_over_before_the_task_that_it_is_for() -> None:
    order = [(0, 0), (1, 1), (0, 2), (2, 3)]  # 3 waits for 2, which came behind 1 and 0
    plan = StreamPlan.of(order, {0: [], 1: [0], 2: [1], 3: [0, 1, 2]}, num_streams=3)
    assert [issued.waits for issued in plan.tasks] == [(), (0,), (1,), (2,)]
    assert plan.join == (3,)


def test_streams_without_work_are_neither_forked_nor_joined() -> None:
    plan = StreamPlan.of([(0, 0), (3, 1)], {0: [], 1: []}, num_streams=4)
    assert [issued.waits for issued in plan.tasks] == [(), (START,)]
    assert plan.join == (1,)


def test_memory_that_other_streams_read_stays_until_its_stream_has_heard_of_it() -> None:
    # Stream 0 allocates in task 0, stream 1 reads in task 1; stream 0 hears of that before task 3, not before task 2.
    order = [(0, 0), (1, 1), (0, 2), (0, 3)]
    plan = StreamPlan.of(order, {0: [], 1: [0], 2: [0], 3: [1]}, num_streams=2)
    assert plan.releases([[0, 1, 2], [1, 3], [2]]) == [[], [], [2], [0]]


def test_plans_of_long_graphs_are_made_quickly() -> None:
    tasks = range(3000)
    dependencies = {task: [other for other in (task - 1, task - 7, task - 50) if other >= 0] for task in tasks}
    plan = StreamPlan.of([(task * 7 % 4, task) for task in tasks], dependencies, num_streams=4)
    assert len(plan.tasks) == 3000
    pairs = itertools.pairwise([*tasks])
    assert sum(map(len, plan.releases([[a, b] for a, b in pairs]))) > 0
