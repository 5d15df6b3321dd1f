"""Strategies that change: what is proposed, accepted, undone or refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bow.errors import ScheduleError, SettingError
from bow.planning.problem.partition import Partition, Split
from bow.planning.search.problem import Problem
from bow.planning.simulator.simulation import Simulation
from tests.planning.proposal_chains import native_times
from tests.planning.random_steps import RULES
from tests.planning.small_steps import ALONE, DATA, GRAPH, SECOND, ElementCosts, model, partition, problem, topology

CHANNELS = Split((1, 2), (1, 0))

algorithms = pytest.mark.parametrize("algorithm", ["delta", "incremental", "full"])


def simulation(algorithm: str = "incremental", splits: tuple[Split, ...] = DATA, learners: int = 1) -> Simulation:
    return problem(2 * learners, algorithm=algorithm).simulation(splits, learners)


def from_nothing(of: Partition) -> int:
    return problem(2 * of.learners).simulate(of.splits, of.learners).makespan_ns


@algorithms
@pytest.mark.parametrize("learners", [1, 2])
def test_a_proposal_is_accepted(algorithm: str, learners: int) -> None:
    simulated = simulation(algorithm, learners=learners)
    proposed = simulated.propose_changes({SECOND: CHANNELS})
    simulated.accept()
    assert simulated.partition.splits == (DATA[0], CHANNELS, DATA[2])
    assert proposed == simulated.makespan_ns == from_nothing(simulated.partition)


@algorithms
def test_a_proposal_is_undone(algorithm: str) -> None:
    simulated = simulation(algorithm)
    before = simulated.makespan_ns, native_times(simulated), simulated.peaks(), simulated.partition
    assert simulated.propose_changes({SECOND: CHANNELS}) != simulated.undo()
    assert (simulated.makespan_ns, native_times(simulated), simulated.peaks(), simulated.partition) == before


@algorithms
def test_of_what_is_too_slow_only_that_need_be_known(algorithm: str) -> None:
    simulated = simulation(algorithm, ALONE)
    limit = simulated.makespan_ns
    slow = from_nothing(partition(DATA))
    assert slow > limit
    found = simulated.propose_changes(dict(enumerate(DATA)), limit_ns=limit)
    assert found is not None
    assert limit < found <= slow
    simulated.undo()
    assert simulated.makespan_ns == limit
    assert simulated.propose_changes(dict(enumerate(DATA)), limit_ns=slow) == slow


def test_one_proposal_at_a_time() -> None:
    simulated = simulation()
    with pytest.raises(ScheduleError, match="there is no proposal to accept; call propose_changes first"):
        simulated.accept()
    simulated.undo()
    simulated.propose_changes({SECOND: CHANNELS})
    with pytest.raises(ScheduleError, match="a proposal is neither accepted nor undone yet"):
        simulated.propose_changes({SECOND: CHANNELS})


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Split((5, 1), (0,) * 5), "has a sample of 4, got degree 5"),
        (Split((2, 1), (0,)), "is split into 2 tiles, got 1 devices"),
        (Split((2, 1), (0, 2)), "has a tile on device 2"),
        (Split((2, 1), (-1, 0)), "has a tile on device -1"),
        (Split((2,), (0, 1)), "has 2 dimensions, got 1 degrees"),
    ],
)
def test_what_is_illegal_is_refused_and_leaves_all_as_it_was(split: Split, message: str) -> None:
    simulated = simulation()
    before = simulated.makespan_ns
    for _ in range(2):
        with pytest.raises(ScheduleError, match=message):
            simulated.propose_changes({0: ALONE[0], SECOND: split})
    assert simulated.makespan_ns == before
    assert simulated.propose_changes({SECOND: DATA[SECOND]}) == before


def test_a_strategy_for_another_graph_is_refused() -> None:
    with pytest.raises(ScheduleError, match="the partition is for graph other"):
        Simulation(model(), Partition("other", DATA))


@dataclass(frozen=True)
class SmallUpdates(ElementCosts):
    """Knows no time for updates of more than some bytes."""

    most: int
    refusal: type[BaseException] = SettingError

    def update_ns(self, weight_bytes: int, device: int) -> int:
        if weight_bytes > self.most:
            raise self.refusal(f"an update of {weight_bytes} bytes was not measured")
        return weight_bytes


@pytest.mark.parametrize("algorithm", ["delta", "incremental"])
@pytest.mark.parametrize("refusal", [SettingError, KeyboardInterrupt])
def test_costs_that_are_not_known_leave_all_as_it_was(refusal: type[BaseException], algorithm: str) -> None:
    halves = tuple(Split((1, 2), (0, 1)) for _ in range(2))
    splits = (*halves, Split((), (0,)))
    costs = SmallUpdates(48, refusal)
    simulated = Problem(GRAPH, RULES, topology(), costs, algorithm=algorithm).simulation(splits)
    before = simulated.makespan_ns, native_times(simulated)
    with pytest.raises(refusal, match="an update of 96 bytes was not measured"):
        simulated.propose_changes({0: ALONE[0]})
    assert (simulated.makespan_ns, native_times(simulated)) == before
    assert simulated.propose_changes({SECOND: ALONE[SECOND]}) is not None


def test_the_first_strategy_raises_what_the_costs_raise() -> None:
    with pytest.raises(SettingError, match="was not measured"):
        Problem(GRAPH, RULES, topology(), SmallUpdates(0)).simulation(DATA)
