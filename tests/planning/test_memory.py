"""How much memory strategies take, and when."""

from __future__ import annotations

import pytest

from bow.errors import ScheduleError
from bow.planning.problem.device_topology import GIB
from bow.planning.problem.partition import Split
from bow.planning.search.problem import Problem
from bow.planning.simulator.python_simulator import SimulationResult
from bow.planning.simulator.simulation import Simulation
from tests.planning.random_steps import RULES
from tests.planning.small_steps import ALONE, DATA, GRAPH, ElementCosts, problem, topology

WEIGHTS = 4 * (18 + 6 + 12)
FIRST, SECOND, LOSS = 4 * 24, 4 * 8, 4
"""Bytes of what the operators make."""


def simulated(
    splits: tuple[Split, ...], devices: int = 2, learners: int = 1, optimizer_bytes: float = 1.0
) -> SimulationResult:
    return problem(devices, optimizer_bytes_per_weight_byte=optimizer_bytes).simulate(splits, learners)


def test_one_device_keeps_weights_and_what_backward_passes_need() -> None:
    peak, idle = simulated(ALONE).peaks
    # When the second layer's backward pass runs, all but the loss is there: both outputs and the gradients of both.
    assert peak == 3 * WEIGHTS + FIRST + SECOND + SECOND + FIRST
    assert idle == 0


@pytest.mark.parametrize(("optimizer_bytes", "copies"), [(0.0, 2), (2.0, 4)])
def test_the_optimizer_keeps_what_it_is_said_to_keep(optimizer_bytes: float, copies: int) -> None:
    less, more = simulated(ALONE), simulated(ALONE, optimizer_bytes=optimizer_bytes)
    assert more.peaks[0] - less.peaks[0] == (copies - 3) * WEIGHTS


def test_averaged_learners_keep_more_copies() -> None:
    alone, averaged = simulated(ALONE, devices=1), simulated(ALONE, learners=2)
    assert averaged.peaks[0] == averaged.peaks[1] == alone.peaks[0] + 5 * WEIGHTS


def test_a_device_keeps_what_it_receives_until_the_last_backward_pass_that_reads_it() -> None:
    splits = (ALONE[0], Split((1, 1), (1,)), Split((), (1,)))
    first, second = simulated(splits).peaks
    assert first == 3 * (WEIGHTS - 48) + FIRST + FIRST
    # Received, made, the gradient of what is made, and the gradient that is on its way back.
    assert second == 3 * 48 + FIRST + SECOND + SECOND + FIRST


@pytest.mark.parametrize("algorithm", ["delta", "incremental", "full"])
def test_what_does_not_fit_is_refused_with_the_reason(algorithm: str) -> None:
    needed = simulated(ALONE).peaks[0]

    def on(memory_bytes: int, splits: tuple[Split, ...]) -> Simulation:
        machine = topology(memory_gib=memory_bytes / GIB)
        assert machine.memory_bytes(0) == memory_bytes
        return Problem(GRAPH, RULES, machine, ElementCosts(), algorithm=algorithm).simulation(splits)

    assert on(needed, ALONE).refusal is None
    with pytest.raises(ScheduleError, match=r"the partition does not fit: d0 \(device 0\) needs"):
        on(needed - 1, ALONE)
    simulation = on(needed - 1, DATA)
    before = sorted(simulation.tasks().tolist()), simulation.makespan_ns, simulation.partition
    assert simulation.propose_changes({0: ALONE[0], 1: ALONE[1]}) is None
    assert simulation.refusal is not None
    assert (simulation.refusal.device, simulation.refusal.needed_bytes) == (0, needed)
    assert simulation.refusal.available_bytes == needed - 1
    simulation.undo()
    assert (sorted(simulation.tasks().tolist()), simulation.makespan_ns, simulation.partition) == before
    assert simulation.propose_changes({1: Split((1, 2), (0, 1))}) is not None
    assert simulation.refusal is None


@pytest.mark.parametrize("algorithm", ["delta", "incremental", "full"])
def test_what_fits_is_evaluated_alike_before_and_after_what_does_not(algorithm: str) -> None:
    machine = topology(memory_gib=(simulated(ALONE).peaks[0] - 1) / GIB)
    small = Problem(GRAPH, RULES, machine, ElementCosts(), algorithm=algorithm)
    simulation, time_ns = small.simulation(ALONE, must_fit=False), simulated(DATA).makespan_ns
    for splits, makespan_ns in ((ALONE, None), (DATA, time_ns), (ALONE, None), (DATA, time_ns), (DATA, time_ns)):
        assert simulation.evaluate(splits) == makespan_ns
        assert (simulation.refusal is None) == (makespan_ns is not None)
    assert simulation.partition.splits == DATA
