"""Times of placements: what the simulator says, and what does not fit."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from benchmarks.placement_machine import k80_machine
from bow.planning.placement.groups import SimulatedEvaluator, module_groups
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.topology_files import load_topology
from bow.planning.simulator.simulation import library
from tests.planning.placement.placed_steps import evaluator, unrolled


def random_placements(groups, devices: int, count: int, seed: int = 0) -> list[tuple[int, ...]]:
    source = random.Random(seed)
    return [tuple(source.randrange(devices) for _ in range(len(groups))) for _ in range(count)]


def small_memory(gib: float) -> DeviceTopology:
    return k80_machine(2, memory_gib=gib)


def test_times_and_refusals_are_those_of_the_simulator_in_python_whatever_came_before():
    graph = unrolled()
    groups = module_groups(graph)
    topology = small_memory(3e-5)
    placements = [(1,) * len(groups), *random_placements(groups, 3, 30)]
    results = [evaluator(graph, groups, topology).result(each) for each in placements]
    wanted = [None if result.refusal else result.makespan_ns / 1e9 for result in results]
    assert None in wanted
    assert any(time is not None for time in wanted)
    for order in (1, -1):
        assert evaluator(graph, groups, topology)(placements[::order]) == wanted[::order]


def test_what_does_not_fit_has_no_time_and_a_reason():
    graph = unrolled()
    evaluate = evaluator(graph, topology=small_memory(1e-6))
    count = len(graph.operators)
    assert evaluate([(1,) * count, (0,) * count])[0] is None
    assert evaluate([(0,) * count])[0] is not None
    refusal = evaluate.result((1,) * count).refusal
    assert refusal is not None
    assert refusal.device == 1
    assert "gpu0 (device 1) needs" in str(refusal)


def test_a_placement_is_simulated_once():
    evaluate = evaluator(unrolled(steps=2))
    count = len(evaluate.groups)
    evaluate([(1,) * count, (2,) * count, (1,) * count])
    evaluate([(2,) * count])
    assert evaluate.num_simulated == 2


def test_accelerators_are_all_devices_but_processors():
    evaluate = evaluator(unrolled(steps=2))
    assert evaluate.accelerators == (1, 2)
    assert SimulatedEvaluator(evaluate.problem, evaluate.groups).accelerators == (0, 1, 2)


def test_another_process_gets_what_is_known_and_makes_its_own_simulator():
    evaluate = evaluator(unrolled(steps=2))
    placement = (1,) * len(evaluate.groups)
    evaluate([placement])
    other = pickle.loads(pickle.dumps(evaluate))
    assert other([placement, (2, *placement[1:])]) == evaluate([placement, (2, *placement[1:])])


@pytest.mark.parametrize("call", ["stage", "propose", "accept"])
def test_what_ctrl_c_leaves_in_the_simulator_is_not_used(call: str, monkeypatch: pytest.MonkeyPatch):
    groups = module_groups(unrolled(steps=2))
    placements = random_placements(groups, 3, 6)
    wanted = evaluator(groups.graph, groups)(placements)
    evaluate, native = evaluator(groups.graph, groups), getattr(library(), call)
    evaluate(placements[:2])

    def interrupted(*arguments: Any) -> None:
        native(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(library(), call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluate(placements[2:3])
    assert evaluate(placements) == wanted


def test_machines_have_the_processor_first_and_slower_copies_to_it():
    machine = k80_machine(4)
    assert [device.kind.name for device in machine.devices] == ["haswell", *["k80"] * 4]
    same_board, other_board = machine.transfer_ns(10**7, 1, 2), machine.transfer_ns(10**7, 1, 3)
    assert same_board < other_board < machine.transfer_ns(10**7, 1, 0)
    assert load_topology("k80_haswell") == machine
    slower = k80_machine(4, copies=3.0)
    assert slower.transfer_ns(10**7, 1, 0) == pytest.approx(3 * machine.transfer_ns(10**7, 1, 0), rel=1e-6)
