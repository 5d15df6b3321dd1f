"""Timelines that can be checked by hand."""

from __future__ import annotations

from bow.planning.simulator.python_simulator import TaskGraph, simulate_passing, simulate_tasks
from bow.planning.simulator.step_model import Task, TaskKind
from tests.planning.small_steps import ALONE, DATA, problem


def task(rank: int, duration_ns: int, *places: int, tile: int = 0) -> Task:
    return Task(TaskKind.FORWARD, 0, rank, tile, 0, 0, places, duration_ns)


def starts(*tasks: tuple[Task, tuple[int, ...]], passing: bool = False) -> list[int]:
    graph = TaskGraph(tuple(each for each, _ in tasks), tuple(before for _, before in tasks), (), ())
    return [time.start_ns for time in (simulate_passing if passing else simulate_tasks)(graph)]


def test_a_place_takes_tasks_in_the_order_in_which_they_become_ready() -> None:
    late, soon = task(1, 4, 0), task(2, 4, 0)
    assert starts((task(0, 5, 1), ()), (task(0, 3, 2), ()), (late, (0,)), (soon, (1,))) == [0, 0, 7, 3]


def test_tasks_that_are_ready_together_run_in_the_order_of_rank_and_tile() -> None:
    assert starts((task(1, 4, 0), ()), (task(0, 4, 0, tile=1), ()), (task(0, 4, 0), ())) == [8, 4, 0]


def test_a_task_on_several_places_waits_for_all_of_them() -> None:
    assert starts((task(0, 5, 0), ()), (task(0, 8, 1, tile=1), ()), (task(1, 1, 0, 1), ())) == [0, 0, 8]


def test_places_are_kept_for_who_was_ready_first() -> None:
    # The second waits for place 1 and keeps place 0 free for that long, although the third could run there.
    both, other = task(1, 1, 0, 1), task(2, 1, 0)
    tasks = (task(0, 9, 1), ()), (both, ()), (other, ())
    assert starts(*tasks) == [0, 9, 10]
    assert starts(*tasks, passing=True) == [0, 9, 0]


def test_of_those_that_can_start_the_first_in_turn_does() -> None:
    tasks = (task(0, 4, 0), ()), (task(2, 1, 0), ()), (task(1, 1, 0), ()), (task(3, 1, 0), (0,))
    assert starts(*tasks) == starts(*tasks, passing=True) == [0, 5, 4, 6]


def test_tasks_without_a_place_run_when_they_are_ready() -> None:
    assert starts((task(0, 5, 0), ()), (task(1, 0), (0,)), (task(2, 1, 0), (1,))) == [0, 5, 5]


def test_one_device_runs_everything_one_after_another() -> None:
    result = problem().simulate(ALONE)
    weights = sum(4 * volume for volume in (18, 6, 12))
    assert result.makespan_ns == result.task_ns == 3 * (24 + 8 + 1) + weights
    assert result.communication_bytes == 0


def test_two_devices_share_the_work_and_the_bus() -> None:
    result = problem().simulate(DATA)
    # Half of the outputs to device 0 and their gradients back, and two reductions.
    assert result.communication_bytes == 2 * 16 + 2 * (96 + 48)
    # Both neighbours in the ring share the bus. The second layer's gradients keep those of the first one waiting.
    assert result.makespan_ns == 12 + 4 + 21 + 1 + 2 + 21 + 8 + (10 + 96) + (10 + 192) + 96
    spans = {(span.name, span.place): span for span in result.timeline.spans}
    assert spans["transfer second", "d0 - d1"].duration_ns == 5 + 16
    assert spans["reduction layer1", "d0 - d1"].duration_ns == 10 + 192
    assert spans["update second", "d1"].category == "update"
    assert set(result.timeline.places) == {"d0", "d1", "d0 - d1"}
