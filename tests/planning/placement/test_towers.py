"""Towers, and what devices are busy with."""

from __future__ import annotations

import pytest

from benchmarks.placement_machine import device_loads, imbalance, k80_machine
from bow.errors import SettingError
from bow.planning.placement.groups import SimulatedEvaluator
from bow.planning.placement.towers import towers
from bow.planning.simulator.step_model import TaskKind
from tests.planning.placement.placed_steps import evaluator, made_of

GRAPH = made_of(*((f"l{n}", "linear", [f"l{n - 1}" if n else "batch"]) for n in range(4)), size=2**16, flops=1e11)


def on(gpus: int, copies: float = 1.0) -> SimulatedEvaluator:
    return evaluator(GRAPH, topology=k80_machine(gpus, copies=copies))


def test_one_tower_takes_the_same_whether_it_waits_for_itself_or_not():
    assert towers(on(1), "synchronous").step_s == pytest.approx(towers(on(1), "asynchronous").step_s)


def test_a_step_takes_at_least_as_long_as_a_tower_computes():
    for kind in ("synchronous", "asynchronous"):
        result = towers(on(2), kind)
        assert result.step_s >= result.computing_s[0]
        assert len(result.computing_s) == 2


def test_one_tower_by_hand():
    """The last gradient's way to the processor, the update, and the way back follow the computation."""
    evaluate = on(1)
    step = evaluate.result((1,) * len(evaluate.groups))
    computing = max(
        time.end_ns for task, time in zip(step.tasks, step.times, strict=True) if task.kind is TaskKind.BACKWARD
    )
    num_bytes = GRAPH.weights["l0.weight"].shape[0] * 4
    to = evaluate.problem.topology.transfer_ns(num_bytes, 1, 0)
    back = evaluate.problem.topology.transfer_ns(num_bytes, 0, 1)
    wanted = computing + to + evaluate.problem.costs.update_ns(num_bytes, 0) + back
    assert towers(evaluate).step_s == pytest.approx(wanted / 1e9, rel=1e-3)


def test_slower_copies_make_slower_towers_and_more_towers_share_the_processor():
    assert towers(on(2, copies=50.0)).step_s > towers(on(2)).step_s
    assert towers(on(4, copies=50.0)).step_s > towers(on(2, copies=50.0)).step_s


def test_towers_that_do_not_wait_are_not_slower():
    assert towers(on(4, copies=20.0), "asynchronous").step_s <= towers(on(4, copies=20.0), "synchronous").step_s * 1.01


def test_towers_need_a_processor():
    evaluate = on(2)
    without = SimulatedEvaluator(evaluate.problem, evaluate.groups)
    with pytest.raises(SettingError, match="CPU device"):
        towers(without)


def test_loads_are_what_tasks_take_on_each_device():
    evaluate = on(2)
    placement = (1, 1, 2, 0)
    result = evaluate.result(placement)
    loads = device_loads(result, evaluate.processors)
    assert sum(load.computing_ns for load in loads) == result.task_ns
    transfers = [task.duration_ns for task in result.tasks if task.kind in (TaskKind.TRANSFER, TaskKind.GRADIENT)]
    assert sum(load.copying_ns for load in loads) == sum(transfers)
    assert loads[0].copied_from_accelerator_ns > 0  # activations of the third layer
    assert loads[0].copied_from_processor_ns == 0
    assert loads[2].copied_from_processor_ns > 0  # gradients of the fourth
    assert loads[1].copied_from_processor_ns == 0
    assert loads[1].copied_from_accelerator_ns > 0


def test_weights_on_several_devices_are_summed_on_all_of_them():
    cells = made_of(*((f"cell@{n}", "lstm_cell", [f"cell@{n - 1}" if n else "batch"]) for n in range(2)))
    evaluate = evaluator(cells)
    loads = device_loads(evaluate.result((1, 2)))
    assert loads[0].summed_ns == 0
    assert loads[1].summed_ns == loads[2].summed_ns > 0


def test_imbalance_falls_where_work_is_spread():
    evaluate = on(2)
    spread = imbalance(device_loads(evaluate.result((1, 2, 1, 2)))[1:])
    assert 1.0 <= spread < 1.2
    assert imbalance(device_loads(evaluate.result((1, 1, 1, 1)))[1:]) == pytest.approx(2.0)
    assert imbalance([]) == 1.0
