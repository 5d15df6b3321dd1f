import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import ScheduleError
from bow.schedule import FirstComeSchedule, OrderedSchedule, PrioritySchedule, Schedule

DIAMOND = [(), (0,), (0,), (1, 2)]


@st.composite
def graphs(draw: st.DrawFn) -> list[frozenset[int]]:
    """Dependencies that point to smaller numbers, and so have no circle."""
    size = draw(st.integers(1, 8))
    return [draw(st.frozensets(st.integers(0, index - 1), max_size=3)) if index else frozenset()
            for index in range(size)]  # fmt: skip


def carried_out(schedule: OrderedSchedule, dependencies: list[frozenset[int]]) -> bool:
    """Whether executors that follow their orders come to the end."""
    lanes = [list(lane) for lane in schedule.order]
    done: set[int] = set()
    while any(lanes):
        ready = [lane for lane in lanes if lane and dependencies[lane[0]] <= done]
        if not ready:
            return False
        done.add(ready[0].pop(0))
    return True


@given(graphs(), st.randoms(use_true_random=False), st.integers(1, 3))
def test_exactly_the_orders_that_come_to_an_end_are_accepted(dependencies, random, executors: int) -> None:
    operators = list(range(len(dependencies)))
    random.shuffle(operators)
    lanes = tuple(tuple(operators[executor::executors]) for executor in range(executors))
    schedule = OrderedSchedule(threads=(1,) * executors, order=lanes)
    if carried_out(schedule, dependencies):
        schedule.check(dependencies)
    else:
        with pytest.raises(ScheduleError, match="deadlocks"):
            schedule.check(dependencies)


@given(graphs())
def test_the_order_of_capture_and_any_priorities_are_accepted(dependencies) -> None:
    Schedule.sequential(len(dependencies), threads=2).check(dependencies)
    PrioritySchedule(threads=(1, 2), priority=tuple(reversed(range(len(dependencies))))).check(dependencies)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (OrderedSchedule((1, 1), ((0, 1), (2,))), "operator 3 never runs"),
        (OrderedSchedule((1, 1), ((0, 1, 2), (3, 1))), "operator 1 waits for 3 waits for 1"),
        (OrderedSchedule((1,), ((0, 1, 2, 1, 3),)), "executor 0 runs operator 1 2 times"),
        (OrderedSchedule((1,), ((0, 1, 2, 3, 4),)), "runs operator 4, and there are 4 (0 to 3)"),
        (OrderedSchedule((1,), ((0, 1, 2, 3, -1),)), "runs operator -1"),
        (OrderedSchedule((1, 0), ((0, 1), (2, 3))), "threads must be at least 1, got 0 for executor 1"),
        (OrderedSchedule((), ()), "at least 1 executor"),
        (OrderedSchedule((1,), ((0, 1), (2, 3))), "an order for 2 executors and threads for 1"),
        (PrioritySchedule((1,), priority=(1, 2, 3)), "3 priorities for 4 operators"),
        (OrderedSchedule((1,), ((0, 1, 2, 3),), after=((2, 4),)), "after names operator 4, and there are 4 (0 to 3)"),
        (OrderedSchedule((1,), ((0, 1, 2, 3),), after=((-1, 2),)), "after names operator -1, and there are 4"),
        (OrderedSchedule((1, 1), ((0, 1), (2, 3)), after=((1, 2), (2, 1))), "operator 1 waits for 2 waits for 1"),
        (OrderedSchedule((1,), ((0, 1, 2, 3),), after=((1, 2),)), "operator 1 waits for 2 waits for 1"),
        (OrderedSchedule((1,), ((0, 3, 1, 2),)), "operator 1 waits for 3 waits for 1"),
        (OrderedSchedule((1, 1), ((3, 0), (1, 2))), "operator 0 waits for 3 waits for 1 waits for 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_carried_out_is_refused_in_one_sentence(schedule: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        schedule.check(DIAMOND)


def test_a_schedule_of_no_kind_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"use one of bow\.schedule: OrderedSchedule, PrioritySchedule, FirstCome"):
        Schedule((1, 1))


def test_dependencies_that_cannot_be_are_refused() -> None:
    with pytest.raises(ScheduleError, match="operator 1 depends on operator 7, but there are only 2 operators"):
        Schedule.sequential(2).check([(), (7,)])
    with pytest.raises(ScheduleError, match="operator 0 waits for 1 waits for 0"):
        PrioritySchedule((1,), priority=(0, 0)).check([(1,), (0,)])


def test_a_long_circle_is_told_in_short() -> None:
    circle = [((index + 1) % 50,) for index in range(50)]
    with pytest.raises(ScheduleError, match=r"operator 0 waits for 1 waits for 2 waits for 3 waits for \.\.\. "):
        PrioritySchedule((1,), priority=(0,) * 50).check(circle)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule.sequential(3),
        OrderedSchedule((1, 2), ((0, 2), (1,))),
        OrderedSchedule((1, 2), ((0, 2), (1,)), after=((2, 1),)),
        PrioritySchedule((4,), priority=(3, 1, 2)),
        PrioritySchedule((4,), priority=(3, 1, 2), stay=True, small=(1,)),
        FirstComeSchedule((4,), small=(0, 2)),
    ],
    ids=repr,
)
def test_saving_and_loading_changes_nothing(schedule: Schedule) -> None:
    assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda text: text[:-4], "is not JSON"),
        (lambda _: "[" * 100_000, "is not JSON"),
        (lambda text: "[]", 'is not a "bow schedule"'),
        (lambda text: text.replace('"version": 4', '"version": 99'), "has version 99, this bow reads 4"),
        (lambda text: text.replace("threads", "thraeds"), "is damaged"),
        (lambda text: text.replace('"kind": "order"', '"kind": "disorder"'), "is damaged .*'disorder'"),
        (lambda text: text.replace("[0, 1]", '[0, "1"]'), "is damaged .*'1' is not a whole number"),
        (lambda text: text.replace("[[0, 1]]", "3"), "is damaged"),
        (lambda text: text.replace('"after": []', '"after": [[1]]'), "is damaged"),
        (lambda text: text.replace('"after": []', '"after": [1]'), "is damaged"),
    ],
)
def test_damaged_text_is_refused_in_one_sentence(change, match: str) -> None:
    with pytest.raises(ScheduleError, match=match):
        Schedule.from_json(change(Schedule.sequential(2).to_json()))


def test_what_comes_after_another_waits_for_it_where_another_executor_runs_it() -> None:
    schedule = OrderedSchedule((1, 1), ((0, 1), (2, 3)), after=((1, 0), (3, 1), (3, 1)))
    assert schedule.on_executors() == ([[0, 1], [2, 3]], {3: [1]})
