"""What a strategy becomes: which tasks there are, what they wait for, occupy and send."""

from __future__ import annotations

import dataclasses
from collections import Counter

from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.problem.partition import Split
from bow.planning.simulator.step_model import TaskKind
from tests.planning.small_steps import (
    ALONE,
    DATA,
    FIRST,
    GRAPH,
    HIDDEN,
    INSIDE,
    LOSS,
    OUTSIDE,
    SAMPLES,
    SECOND,
    model,
    of_kind,
    tasks_of,
    waits_for,
)

FIRST_BYTES = 4 * (HIDDEN * INSIDE + HIDDEN)
SECOND_BYTES = 4 * OUTSIDE * HIDDEN
BUS = 2
"""The place behind two devices."""


def test_one_device_needs_neither_transfers_nor_reductions() -> None:
    graph = tasks_of(model(), ALONE)
    kinds = Counter(task.kind for task in graph.tasks)
    assert kinds == {TaskKind.FORWARD: 3, TaskKind.BACKWARD: 3, TaskKind.GATHER: 2, TaskKind.UPDATE: 2}
    assert {task.places for task in graph.tasks} == {(0,), ()}
    assert graph.weight_bytes == (FIRST_BYTES + SECOND_BYTES, 0)


def test_replicas_reduce_their_gradients_and_update_their_own_copies() -> None:
    graph = tasks_of(model(), DATA)
    reductions, updates = of_kind(graph, TaskKind.REDUCTION), of_kind(graph, TaskKind.UPDATE)
    assert [task.num_bytes for task in reductions] == [2 * FIRST_BYTES, 2 * SECOND_BYTES]
    assert {task.places for task in reductions} == {(BUS,)}
    assert sorted((task.owner, task.device, task.duration_ns) for task in updates) == [
        (0, 0, FIRST_BYTES),
        (0, 1, FIRST_BYTES),
        (1, 0, SECOND_BYTES),
        (1, 1, SECOND_BYTES),
    ]
    assert {task.kind for task in waits_for(graph, updates[0])} == {TaskKind.GATHER, TaskKind.REDUCTION}
    gathered = waits_for(graph, reductions[0])
    assert [(task.kind, task.device) for task in gathered] == [(TaskKind.GATHER, 0), (TaskKind.GATHER, 1)]
    assert [(task.kind, task.owner, task.device) for task in waits_for(graph, gathered[1])] == [
        (TaskKind.BACKWARD, FIRST, 1)
    ]


def test_parameters_that_are_split_are_not_reduced() -> None:
    splits = (Split((1, 2), (0, 1)), *ALONE[1:])
    graph = tasks_of(model(), splits)
    assert of_kind(graph, TaskKind.REDUCTION) == []
    assert graph.weight_bytes == (FIRST_BYTES // 2 + SECOND_BYTES, FIRST_BYTES // 2)


def test_what_another_device_made_is_sent_and_its_gradient_comes_back() -> None:
    graph = tasks_of(model(), (Split((1, 1), (1,)), *ALONE[1:]))
    (there,), (back,) = of_kind(graph, TaskKind.TRANSFER), of_kind(graph, TaskKind.GRADIENT)
    assert there.num_bytes == back.num_bytes == 4 * SAMPLES * HIDDEN
    assert there.duration_ns == back.duration_ns == 5 + 4 * SAMPLES * HIDDEN
    assert there.places == back.places == (BUS,)
    assert [(task.kind, task.owner) for task in waits_for(graph, there)] == [(TaskKind.FORWARD, FIRST)]
    assert [(task.kind, task.owner) for task in waits_for(graph, back)] == [(TaskKind.BACKWARD, SECOND)]
    backward = next(task for task in of_kind(graph, TaskKind.BACKWARD) if task.owner == FIRST)
    assert back in waits_for(graph, backward)


def test_tiles_of_a_device_share_a_transfer() -> None:
    splits = (Split((1, 1), (1,)), Split((1, 2), (0, 0)), Split((), (0,)))
    graph = tasks_of(model(), splits)
    (there,), (back,) = of_kind(graph, TaskKind.TRANSFER), of_kind(graph, TaskKind.GRADIENT)
    readers = [task for task in of_kind(graph, TaskKind.FORWARD) if there in waits_for(graph, task)]
    assert [(task.owner, task.tile) for task in readers] == [(SECOND, 0), (SECOND, 1)]
    assert len(waits_for(graph, back)) == 2


def test_each_device_gets_only_what_it_reads() -> None:
    splits = (Split((1, 1), (0,)), Split((2, 1), (0, 1)), Split((), (0,)))
    sizes = [
        (task.owner, task.device, task.num_bytes) for task in of_kind(tasks_of(model(), splits), TaskKind.TRANSFER)
    ]
    half = SAMPLES // 2
    assert sizes == [(FIRST, 1, 4 * half * HIDDEN), (SECOND, 0, 4 * half * OUTSIDE)]


def test_without_overlap_devices_are_busy_while_they_send() -> None:
    graph = tasks_of(model(overlap=False), DATA)
    assert {task.places for task in graph.tasks if task.num_bytes} == {(0, 1, BUS)}


def without_gradients(tensor: int) -> OperatorGraph:
    changed = {**GRAPH.tensors, tensor: dataclasses.replace(GRAPH.tensors[tensor], differentiable=False)}
    return dataclasses.replace(GRAPH, tensors=changed)


def test_no_gradient_comes_back_through_what_has_none() -> None:
    splits = (Split((1, 1), (1,)), *ALONE[1:])
    graph = tasks_of(model(graph=without_gradients(1)), splits)
    assert len(of_kind(graph, TaskKind.TRANSFER)) == 1
    assert of_kind(graph, TaskKind.GRADIENT) == []


def test_frozen_weights_are_neither_reduced_nor_updated() -> None:
    frozen = {name: dataclasses.replace(weight, differentiable=False) for name, weight in GRAPH.weights.items()}
    graph = tasks_of(model(graph=dataclasses.replace(GRAPH, weights=frozen)), DATA)
    assert {task.kind for task in graph.tasks} == {TaskKind.FORWARD, TaskKind.TRANSFER}
    assert (graph.weight_bytes, graph.frozen_bytes) == ((0, 0), (FIRST_BYTES + SECOND_BYTES,) * 2)


def test_what_tiles_sum_leaves_after_the_sum() -> None:
    operators = (
        PlanOperator("norm", "norm", (0,), (1,), ("w",)),
        PlanOperator("after", "add", (1,), (2,)),
        PlanOperator("loss", "loss", (2,), (3,)),
    )
    pair = TensorShape((4, 6))
    graph = OperatorGraph(operators, {0: pair, 1: pair, 2: pair, 3: TensorShape(())}, (0,), {"w": TensorShape((6,))}, 3)
    step = model(graph=graph)
    for devices, sums in (((0, 1), 1), ((0, 0), 0)):
        tasks = tasks_of(step, (Split((2, 1), devices), Split((2, 1), devices), Split((), (0,))))
        assert len(of_kind(tasks, TaskKind.FORWARD_SUM)) == len(of_kind(tasks, TaskKind.BACKWARD_SUM)) == sums
        after = next(task for task in of_kind(tasks, TaskKind.FORWARD) if task.owner == 1)
        assert [task.kind for task in waits_for(tasks, after)] == [TaskKind.FORWARD_SUM if sums else TaskKind.FORWARD]


def test_learners_repeat_everything_on_devices_of_their_own_and_are_averaged() -> None:
    graph = tasks_of(model(devices=4, learners=2), DATA)
    averagings = of_kind(graph, TaskKind.AVERAGING)
    everything = FIRST_BYTES + SECOND_BYTES
    assert [task.num_bytes for task in averagings] == [2 * everything, 2 * everything]
    assert all(waits_for(graph, task) == [] for task in averagings)
    forward = [(task.owner, task.device) for task in of_kind(graph, TaskKind.FORWARD)]
    assert forward[:5] == [(FIRST, 0), (FIRST, 1), (SECOND, 0), (SECOND, 1), (LOSS, 0)]
    assert forward[5:] == [(owner + 3, device + 2) for owner, device in forward[:5]]
    assert len(of_kind(graph, TaskKind.REDUCTION)) == 4
