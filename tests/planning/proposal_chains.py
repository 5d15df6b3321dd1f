"""Chains of proposals, each simulated by all algorithms and from nothing in Python."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import get_args

import pytest

from bow.errors import ScheduleError
from bow.planning.problem.partition import Partition, Split
from bow.planning.simulator.python_simulator import SimulationResult, TaskGraph, TaskTime, simulate
from bow.planning.simulator.simulation import Algorithm, Simulation
from bow.planning.simulator.step_model import Identity, StepModel
from tests.planning.random_steps import RULES, Step, random_split, random_step, random_strategy

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


def check_chain(source: random.Random, algorithms: Sequence[Algorithm] = ALGORITHMS, most: int = 8) -> int:
    """A random step, strategy, and proposals that are accepted, undone or refused; how many there were.

    Every algorithm has to give the same start and end of every task, makespan and peaks of memory as a simulation from
    nothing in Python, whose timeline has to obey dependencies and the order of every device and channel.
    """
    step = random_step(source)
    partition = random_strategy(source, step)
    now = from_nothing(step, partition)
    check_timeline(now, partition)
    if now.refusal is not None:
        for algorithm in algorithms:
            with pytest.raises(ScheduleError, match="the partition does not fit"):
                simulation(step, partition, algorithm)
        return 0
    simulations = [simulation(step, partition, algorithm) for algorithm in algorithms]
    for each in simulations:
        check_equal(each, now)
    proposals = source.randint(1, most)
    for _ in range(proposals):
        changes = random_changes(source, step)
        partition = changed(simulations[0].partition, changes)
        proposed = from_nothing(step, partition)
        check_timeline(proposed, partition)
        limit_ns = source.choice([None, None, proposed.makespan_ns, proposed.makespan_ns - 1, now.makespan_ns])
        accept = source.random() < 0.5
        for each in simulations:
            before = each.partition
            found = each.propose_changes(changes, limit_ns)
            if found is not None and limit_ns is not None and found > limit_ns:
                assert limit_ns < found <= proposed.makespan_ns
                each.undo()
                assert each.partition == before
                check_equal(each, now)
                found = each.propose_changes(changes)
            assert each.refusal == proposed.refusal
            if proposed.refusal is not None:
                assert found is None
                check_equal(each, now)
                continue
            assert found == proposed.makespan_ns
            check_equal(each, proposed)
            if accept:
                each.accept()
            else:
                each.undo()
                check_equal(each, now)
        if accept and proposed.refusal is None:
            now = proposed
    return proposals


def check_equal(simulation: Simulation, wanted: SimulationResult) -> None:
    assert simulation.makespan_ns == wanted.makespan_ns
    assert native_times(simulation) == times_of(wanted)
    assert simulation.peaks() == wanted.peaks


def native_times(simulation: Simulation) -> dict[Identity, TaskTime]:
    """When every task runs, by the compiled simulator."""
    return {
        (order >> 32, order >> 16 & 0xFFFF, order & 0xFFFF, code % 2**64): TaskTime(ready, start, end)
        for order, code, ready, start, end in simulation.tasks().tolist()
    }


def check_timeline(result: SimulationResult, partition: Partition) -> None:
    """Tasks run when all that they wait for is over, in the order in which they became ready, and never in vain."""
    times = times_of(result)
    graph = TaskGraph.of(result.model, partition)
    turns: dict[int, list[tuple[int, Identity]]] = defaultdict(list)
    for task, before in zip(graph.tasks, graph.predecessors, strict=True):
        time = times[task.identity]
        assert time.ready_ns == max((times[graph.tasks[number].identity].end_ns for number in before), default=0)
        assert time.end_ns - time.start_ns == task.duration_ns
        assert all(graph.tasks[number].rank < task.rank for number in before)
        for place in task.places:
            turns[place].append((time.ready_ns, task.identity))
    if result.model.topology.passing:
        check_passing(graph, times)
        return
    free_ns: dict[Identity, int] = defaultdict(int)
    for queue in turns.values():
        queue.sort()
        for (_, earlier), (_, later) in itertools.pairwise(queue):
            assert times[earlier].end_ns <= times[later].start_ns
            free_ns[later] = max(free_ns[later], times[earlier].end_ns)
    for identity, time in times.items():
        assert time.start_ns == max(time.ready_ns, free_ns[identity])


def check_passing(graph: TaskGraph, times: Mapping[Identity, TaskTime]) -> None:
    """A place does one thing at a time, and no task waits while all of its places are free."""
    busy: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for task in graph.tasks:
        for place in task.places:
            busy[place].append((times[task.identity].start_ns, times[task.identity].end_ns))
    for spans in busy.values():
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(spans)))
    for task in graph.tasks:
        now = times[task.identity].ready_ns
        for start, end in sorted(span for place in task.places for span in busy[place]):
            now = end if start <= now < end <= times[task.identity].start_ns else now
        assert now == times[task.identity].start_ns


def times_of(result: SimulationResult) -> dict[Identity, TaskTime]:
    times = {task.identity: time for task, time in zip(result.tasks, result.times, strict=True)}
    assert len(times) == len(result.tasks), "two tasks have the same identity"
    return times


def simulation(step: Step, partition: Partition, algorithm: Algorithm) -> Simulation:
    return Simulation(model_of(step, partition.learners), partition, algorithm)


def from_nothing(step: Step, partition: Partition) -> SimulationResult:
    return simulate(model_of(step, partition.learners), partition)


def model_of(step: Step, learners: int) -> StepModel:
    return StepModel(step.graph, RULES, step.topology, step.costs, learners=learners)


def random_changes(source: random.Random, step: Step) -> dict[int, Split]:
    """Of one operator, now and then of several."""
    count = source.choice([1, 1, 1, 2, 3])
    operators = [source.randrange(len(step.graph.operators)) for _ in range(count)]
    return {operator: random_split(source, step, operator) for operator in operators}


def changed(partition: Partition, changes: Mapping[int, Split]) -> Partition:
    splits = [changes.get(operator, split) for operator, split in enumerate(partition.splits)]
    return Partition(partition.graph_hash, tuple(splits), partition.learners)
