from __future__ import annotations

import pytest

from benchmarks.line_up import BOW, PYTORCH, RIVALS, Lane, line_up
from benchmarks.workloads import WORKLOADS


def lanes_of(model: str, implementation: str) -> set[tuple[int | None, int]]:
    lanes = line_up(WORKLOADS[model], RIVALS, (1, 2, 4, 8), (1, 2))
    return {(lane.learners, lane.threads) for lane in lanes if lane.implementation == implementation}


@pytest.mark.parametrize("model", WORKLOADS)
def test_everybody_takes_part_once(model: str) -> None:
    lanes = line_up(WORKLOADS[model], RIVALS, (1, 2, 4, 8), (1, 2))
    assert len(lanes) == len(set(lanes))
    assert {lane.implementation for lane in lanes} == {*PYTORCH, *BOW}


@pytest.mark.parametrize("implementation", PYTORCH)
def test_pytorch_runs_with_one_thread_and_with_two(implementation: str) -> None:
    assert lanes_of("lenet", implementation) == {(None, 1), (None, 2)}


def test_learners_with_cores_of_their_own_have_one_thread_and_a_learner_alone_also_two() -> None:
    assert lanes_of("lenet", "graph") == {(1, 1), (1, 2), (2, 1), (4, 1), (8, 1)}
    assert lanes_of("lenet", "graph+compiled") == {(1, 1), (2, 1), (4, 1), (8, 1)}
    assert lanes_of("lenet", "streams") == {(2, 1), (8, 1)}
    assert lanes_of("lenet", "eager") == {(1, 1), (1, 2), (8, 1)}


def test_large_models_are_tried_with_fewer_learners() -> None:
    assert lanes_of("resnet8", "graph") == {(1, 1), (1, 2), (2, 1), (4, 1)}
    assert lanes_of("resnet8", "fused") == {(2, 1), (2, 2)}


@pytest.mark.parametrize("model", WORKLOADS)
@pytest.mark.parametrize("implementation", ["graph", "graph+compiled"])
def test_one_and_two_learners_on_one_thread_are_there_to_be_compared(model: str, implementation: str) -> None:
    assert {(1, 1), (2, 1)} <= lanes_of(model, implementation)


def test_settings_leave_out_rivals_learners_and_threads() -> None:
    lanes = line_up(WORKLOADS["mlp"], ["graph", "compiled"], [2], [2])
    assert lanes == [Lane("pytorch", 2, None), Lane("compiled", 2, None), Lane("graph", 2, 2)]


def test_a_lane_names_itself_in_full_and_in_short() -> None:
    assert str(Lane("graph+compiled", 1, 2)) == "graph+compiled with 2 learners on 1 thread"
    assert Lane("graph+compiled", 1, 2).short == "graph+compiled, 2 learners"
    assert Lane("pytorch", 2, None).short == "pytorch, 2 threads"


def test_a_lane_knows_what_bow_should_run() -> None:
    compiled, plain = Lane("graph+compiled", 1, 2), Lane("graph", 1, 2)
    assert (compiled.engine, compiled.compiles, compiled.expected) == ("graph", True, "graph (compiled)")
    assert (plain.engine, plain.compiles, plain.expected) == ("graph", False, "graph")
