from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from benchmarks.planner.simulators import Recording
from bow.errors import SettingError
from bow.planning.problem.partition import Partition, Split
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.search.metropolis import GRACE_PER_OPERATOR, Limits, Walk, metropolis
from bow.planning.search.proposals import Changes, SymmetricProposals
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.simulation import ALGORITHMS, Algorithm, Simulation
from tests.planning.search_graphs import SlowSimulation, model_of, perceptron

GRAPH = perceptron()
PAIR = load_topology("two_cores")
TINY = perceptron(samples=2, sizes=(4, 2, 2))
TINY_SPACE = SplitSpace(TINY, RULES, 2, devices="distinct", even=True)
STRATEGIES = [*itertools.product(*(list(TINY_SPACE.splits(n)) for n in range(TINY_SPACE.num_operators)))]


class Landscape:
    """Strategies whose times are known beforehand."""

    def __init__(self, times: Mapping[tuple[Split, ...], int]) -> None:
        self.splits, self.times = next(iter(times)), times
        self.seen: list[tuple[Split, ...]] = []
        self._proposed = self.splits

    @property
    def makespan_ns(self) -> int:
        return self.times[self.splits]

    def propose_changes(self, changes: Mapping[int, Split], limit_ns: int | None = None) -> int | None:
        self._proposed = tuple(changes.get(number, split) for number, split in enumerate(self.splits))
        return self.times[self._proposed]

    def accept(self) -> None:
        self.splits = self._proposed
        self.seen.append(self.splits)

    def undo(self) -> None:
        self.seen.append(self.splits)


class Clock:
    def __init__(self, step_s: float) -> None:
        self.now, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self._step_s
        return self.now


def flat() -> Landscape:
    return Landscape(dict.fromkeys(STRATEGIES, 1000))


def hilly(seed: int = 3) -> Landscape:
    source = random.Random(seed)
    return Landscape({partition: source.randrange(80, 160) for partition in STRATEGIES})


def downhill(seed: int = 3) -> Landscape:
    """Every operator has a time of its own for each split; the slowest strategy comes first."""
    source = random.Random(seed)
    own = [
        {split: source.randrange(100) for split in TINY_SPACE.splits(number)}
        for number in range(TINY_SPACE.num_operators)
    ]
    times = {partition: sum(of[split] for of, split in zip(own, partition, strict=True)) for partition in STRATEGIES}
    return Landscape(dict(sorted(times.items(), key=lambda each: -each[1])))


def walked(landscape: Landscape, limits: Limits, seed: int = 6, families: bool = False, **options: Any) -> Walk:
    source = random.Random(seed)
    proposals = SymmetricProposals(TINY_SPACE, TINY, source, families)
    return metropolis(landscape, proposals, limits, source, **options)


def walk_on(landscape: Landscape, count: int, temperature: float, seed: int = 11, families: bool = False) -> Walk:
    return walked(landscape, Limits(proposals=count, patience=None), seed, families, temperature=temperature)


@pytest.mark.parametrize("families", [False, True])
def test_strategies_are_visited_as_often_as_their_times_say(families: bool) -> None:
    """Boltzmann's distribution: a strategy's share of the visits is proportional to exp(-t / (temperature * t0))."""
    landscape, temperature = hilly(), 0.2
    scale = temperature * landscape.makespan_ns
    walk_on(landscape, 60_000, temperature, families=families)
    counts = Counter(landscape.times[partition] // 8 for partition in landscape.seen[1000::20])
    weights: dict[int, float] = Counter()
    for time in landscape.times.values():
        weights[time // 8] += math.exp(-time / scale)
    expected = {level: counts.total() * weight / sum(weights.values()) for level, weight in weights.items()}
    chi_square = sum((counts[level] - count) ** 2 / count for level, count in expected.items())
    assert len(expected) == 10
    assert min(expected.values()) > 5
    assert chi_square < 27.9  # 9 degrees of freedom, 0.1 %


def test_cold_walk_never_accepts_what_is_slower() -> None:
    model, start = model_of(GRAPH, PAIR), data_parallel(GRAPH, RULES, 2)
    times: list[int] = []

    class Watched(SlowSimulation):
        def accept(self) -> None:
            super().accept()
            times.append(self.makespan_ns)

    simulation, source = Watched(model, start), random.Random(5)
    proposals = SymmetricProposals(SplitSpace(GRAPH, RULES, 2), GRAPH, source)
    limits = Limits(proposals=200, patience=None)
    walk = metropolis(simulation, proposals, limits, source, temperature=0.0)
    assert times == sorted(times, reverse=True)
    assert walk.makespan_ns == simulation.makespan_ns == min(times)
    assert walk.accepted == len(times)


def test_hot_walk_accepts_everything_that_fits() -> None:
    walk = walk_on(hilly(), 300, 1e9)
    assert walk.accepted == walk.evaluated > 0


def test_walk_finds_the_best_of_a_small_space_and_says_when() -> None:
    landscape = hilly()
    first = landscape.makespan_ns
    walk = walk_on(landscape, 3000, 0.2)
    assert walk.makespan_ns == min(landscape.times.values()) == landscape.times[walk.splits]
    found = [best.makespan_ns for best in walk.bests]
    assert found[0] == first
    assert found == sorted(set(found), reverse=True)
    assert [best.proposals for best in walk.bests] == sorted(best.proposals for best in walk.bests)


def test_equal_seeds_walk_alike_and_others_do_not() -> None:
    seen = []
    for seed in (1, 1, 2):
        landscape = hilly()
        walk_on(landscape, 200, 0.1, seed=seed)
        seen.append(landscape.seen)
    assert seen[0] == seen[1] != seen[2]


def test_recorded_proposals_played_again_end_in_the_same_strategy() -> None:
    model, start, source = model_of(GRAPH, PAIR), data_parallel(GRAPH, RULES, 2), random.Random(3)
    proposals = SymmetricProposals(SplitSpace(GRAPH, RULES, 2), GRAPH, source)
    simulation, limits = SlowSimulation(model, start), Limits(proposals=100, patience=None)
    recording = Recording(simulation)
    walk = metropolis(recording, proposals, limits, source, temperature=0.05)
    assert walk.evaluated == len(recording.proposals)
    assert 0 < walk.accepted < walk.evaluated
    again = SlowSimulation(model, start)
    for proposed in recording.proposals:
        makespan = again.propose_changes(proposed.changes)
        assert makespan is not None
        assert (makespan <= proposed.limit_ns) == proposed.is_accepted
        if proposed.is_accepted:
            again.accept()
        else:
            again.undo()
    assert again.splits == simulation.splits


def test_what_does_not_fit_is_refused_and_counted() -> None:
    class Tight(Landscape):
        def propose_changes(self, changes: Mapping[int, Split], limit_ns: int | None = None) -> int | None:
            return None

    landscape = Tight(dict.fromkeys(STRATEGIES, 1000))
    start = landscape.splits
    walk = walk_on(landscape, 50, 0.1)
    assert walk.refused == walk.evaluated > 0
    assert (walk.accepted, walk.splits) == (0, start)


def test_simulator_is_told_beyond_what_time_it_may_stop() -> None:
    limits: list[tuple[int, int, bool]] = []

    class Telling(Landscape):
        def propose_changes(self, changes: Mapping[int, Split], limit_ns: int | None = None) -> int | None:
            makespan = super().propose_changes(changes, limit_ns)
            assert limit_ns is not None
            assert makespan is not None
            limits.append((self.makespan_ns, limit_ns, makespan <= limit_ns))
            return makespan if makespan <= limit_ns else limit_ns + 1  # as a simulator does that has stopped

    landscape = Telling(hilly().times)
    walk = walk_on(landscape, 300, 0.1)
    assert all(limit >= now for now, limit, _ in limits)
    assert walk.accepted == sum(fits for _, _, fits in limits)
    other = hilly()
    assert walk_on(other, 300, 0.1).splits == walk.splits
    assert other.seen == landscape.seen


def test_walk_ends_with_its_budget() -> None:
    walk = walked(flat(), Limits(budget_s=2.0, patience=None), clock=Clock(0.01))
    assert walk.ending == "budget"
    assert 2.0 <= walk.seconds < 2.1


def test_walk_ends_when_half_of_it_brought_nothing_but_not_at_once() -> None:
    walk = walked(flat(), Limits())
    assert (walk.ending, walk.proposals) == ("no gain", GRACE_PER_OPERATOR * len(TINY.operators))


def test_walk_ends_half_of_its_time_behind_the_last_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bow.planning.search.metropolis.GRACE_PER_OPERATOR", 2)
    walk = walked(downhill(), Limits(budget_s=1e6), temperature=0.0, clock=Clock(1.0))
    assert walk.ending == "no gain"
    assert walk.proposals > 2 * len(TINY.operators)
    assert walk.seconds == pytest.approx(2 * walk.bests[-1].seconds, abs=8)


def test_walk_without_patience_goes_on() -> None:
    walk = walked(flat(), Limits(proposals=500, patience=None))
    assert (walk.ending, walk.proposals) == ("proposals", 500)


def test_watcher_hears_of_a_walk_and_ends_it() -> None:
    told: list[tuple[float, int, int]] = []

    def watch(seconds: float, count: int, best_ns: int) -> bool:
        told.append((seconds, count, best_ns))
        return len(told) < 3

    walk = walked(flat(), Limits(proposals=10**9, patience=None), watch=watch, clock=Clock(0.01))
    assert walk.ending == "interrupted"
    assert [best for _, _, best in told] == [1000, 1000, 1000]
    assert [count for _, count, _ in told] == sorted({count for _, count, _ in told})


def test_interrupted_walk_returns_the_best_so_far() -> None:
    landscape, source = hilly(), random.Random(6)
    proposals = SymmetricProposals(TINY_SPACE, TINY, source, families=False)

    class Interrupting:
        left = 200

        def draw(self, splits: Sequence[Split]) -> Changes:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return proposals.draw(splits)

    walk = metropolis(landscape, Interrupting(), Limits(patience=None, budget_s=99), source)
    assert walk.ending == "interrupted"
    assert len(walk.bests) > 1
    assert landscape.times[walk.splits] == walk.makespan_ns


@pytest.mark.parametrize(
    "settings",
    [
        {"patience": None},
        {"budget_s": 0.0},
        {"budget_s": float("inf")},
        {"proposals": -1},
        {"patience": 0.0},
        {"patience": 1.5},
    ],
)
def test_limits_without_sense_are_refused(settings: dict[str, float | None]) -> None:
    with pytest.raises(SettingError):
        Limits(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_simulation_follows_any_order_of_strategies(algorithm: Algorithm) -> None:
    model, source = model_of(GRAPH, PAIR), random.Random(7)
    space = SplitSpace(GRAPH, RULES, 2)
    strategies = [space.random_partition(source) for _ in range(6)]
    alone = [SlowSimulation(model, partition).makespan_ns for partition in strategies]
    evaluate = Simulation(model, Partition(GRAPH.hash, strategies[0]), algorithm).evaluate
    assert [evaluate(partition) for partition in (*strategies, *reversed(strategies))] == [*alone, *reversed(alone)]
    limited = [evaluate(partition, min(alone)) for partition in strategies]
    assert all(
        time is not None and time > min(alone) for time, own in zip(limited, alone, strict=True) if own > min(alone)
    )
    assert evaluate(strategies[alone.index(min(alone))], min(alone)) == min(alone)
