"""The order of issue, the memory behind values, and TensorFlow's placement as a schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.runtime.streams import MemoryUse, costs_behind, issue_order
from bow.schedule import FirstComeSchedule, OrderedSchedule, PrioritySchedule
from bow.schedule.scheduler import ListScheduler, critical_path
from bow.schedule.scheduler.protocol import simulate_operators
from tests.graph.cases import PAPER_MODELS, captured
from tests.schedule.scheduler.graphs import Dependencies, listed
from tests.schedule.scheduler.graphs import dependencies as graphs


def test_streams_in_the_order_of_capture_are_issued_in_it() -> None:
    order = [(number % 3, number) for number in range(9)]
    lanes = tuple(tuple(range(stream, 9, 3)) for stream in range(3))
    assert issue_order(OrderedSchedule((1,) * 3, order=lanes), [frozenset()] * 9) == order


def test_other_orders_are_kept_on_every_stream_and_behind_what_they_depend_on() -> None:
    dependencies = [frozenset(before) for before in [(), (), (0,), (1,), (2, 3)]]
    schedule = OrderedSchedule((1, 1), order=((3, 0, 4), (1, 2)))
    assert issue_order(schedule, dependencies) == [(1, 1), (0, 3), (0, 0), (1, 2), (0, 4)]


def test_levels_of_a_critical_path_issue_operators_as_they_start_in_simulated_time() -> None:
    # 0 is short and leads to nothing long; 1 and 2 are the critical path, beside which 0, 3 and 4 have their time.
    dependencies = [frozenset(before) for before in [(), (), (1,), (), (3,)]]
    costs = [1, 4, 6, 2, 3]
    levels = tuple(int(level) for level in critical_path(dependencies, costs).levels)
    assert issue_order(PrioritySchedule((1, 1), priority=levels), dependencies) == [
        (0, 1),
        (1, 3),
        (1, 4),
        (0, 2),
        (1, 0),
    ]


def test_who_stays_follows_on_the_stream_of_what_it_reads() -> None:
    dependencies = [frozenset(before) for before in [(), (), (1,)]]
    assert issue_order(PrioritySchedule((1, 1), priority=(2, 1, 3)), dependencies) == [(0, 0), (1, 1), (0, 2)]
    assert issue_order(PrioritySchedule((1, 1), priority=(2, 1, 3), stay=True), dependencies) == [
        (0, 0),
        (1, 1),
        (1, 2),
    ]


def test_first_come_and_priorities_that_are_no_levels_take_all_operators_for_equally_long() -> None:
    dependencies = [frozenset(before) for before in [(), (), (1,), ()]]
    assert issue_order(FirstComeSchedule((1, 1)), dependencies) == [(0, 0), (1, 1), (0, 3), (1, 2)]
    no_levels = PrioritySchedule((1, 1), priority=(0, 5, 9, 1))  # operator 2 has more left than what comes before it
    assert issue_order(no_levels, dependencies) == [(0, 1), (1, 3), (0, 2), (1, 0)]


def test_views_take_no_time() -> None:
    dependencies = [frozenset(before) for before in [(), (0,), (), ()]]
    schedule = FirstComeSchedule((1, 1))
    assert issue_order(schedule, dependencies) == [(0, 0), (1, 2), (0, 3), (1, 1)]
    assert issue_order(schedule, dependencies, free={2}) == [(0, 0), (1, 2), (1, 3), (0, 1)]


@given(graphs(), st.integers(1, 4), st.data())
def test_every_operator_is_issued_once_and_behind_what_it_depends_on(
    before_each: Dependencies, streams: int, data: st.DataObject
) -> None:
    dependencies = [*map(frozenset, before_each)]
    numbers = data.draw(listed(st.integers(-3, 9), before_each))
    for schedule in (
        PrioritySchedule((1,) * streams, priority=tuple(numbers)),
        PrioritySchedule((1,) * streams, priority=tuple(numbers), stay=True, small=tuple(range(0, len(numbers), 3))),
        FirstComeSchedule((1,) * streams),
    ):
        order = issue_order(schedule, dependencies)
        position = {operator: index for index, (_, operator) in enumerate(order)}
        assert sorted(position) == list(range(len(dependencies)))
        assert {stream for stream, _ in order} <= set(range(streams))
        for operator, before in enumerate(dependencies):
            assert all(position[earlier] < position[operator] for earlier in before)


@given(graphs(), st.data())
def test_what_operators_take_is_known_from_their_levels(before_each: Dependencies, data: st.DataObject) -> None:
    dependencies = [*map(frozenset, before_each)]
    costs = data.draw(listed(st.integers(0, 9), before_each))
    levels = [int(level) for level in critical_path(dependencies, costs).levels]
    assert costs_behind(levels, dependencies) == (costs if any(costs) else [1] * len(costs))


@given(graphs(), st.integers(1, 4), st.data())
def test_streams_take_as_long_as_graphis_schedule_promises(
    before_each: Dependencies, streams: int, data: st.DataObject
) -> None:
    dependencies = [*map(frozenset, before_each)]
    costs = data.draw(listed(st.integers(1, 9), before_each))
    levels = tuple(int(level) for level in critical_path(dependencies, costs).levels)
    order = issue_order(PrioritySchedule((1,) * streams, priority=levels), dependencies)
    ends = [0] * len(costs)
    free = [0] * streams
    for stream, operator in order:  # what streams and events make of it
        begins = max([free[stream], *(ends[earlier] for earlier in dependencies[operator])])
        ends[operator] = free[stream] = begins + costs[operator]
    scheduler = ListScheduler(dependencies, streams, levels)
    promised = simulate_operators(scheduler, lambda start: costs[start.operator]).spans
    assert max(ends, default=0) == max((span.end_ns for span in promised), default=0)


@pytest.mark.sample(3, 2)
@pytest.mark.parametrize("name", PAPER_MODELS)
def test_memory_is_used_by_whoever_reads_any_view_of_it(name: str) -> None:
    _, graph = captured(name)
    memory = MemoryUse(graph, graph.operators)
    views = [view for views in (memory.views_of_inputs, *memory.views_of.values()) for view in views]
    assert sorted(view.index for view in views) == [op.index for op in graph.operators if op.is_view]
    depends = memory.dependencies()
    for value, (maker, *readers) in memory.uses.items():
        aliases = memory.aliases[value]
        assert value in graph.operators[maker].results
        direct = {op.index for op in graph.operators if not op.is_view and not set(aliases).isdisjoint(op.reads)}
        assert set(readers) == direct
        assert all(maker in depends[reader] for reader in readers)
        assert graph.results.isdisjoint(aliases)
