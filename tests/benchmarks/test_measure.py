"""Timing in turns, on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.measure import Contestant, Spread, race, ratios, warm_up


class World:
    """A clock, and contestants that take a known time on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.slowdown = 1.0

    def clock(self) -> float:
        return self.now

    def contestant(self, name: str, seconds: float, samples: int = 1, threads: int = 1) -> Contestant:
        def run() -> int:
            self.now += seconds * self.slowdown
            self.calls.append(name)
            return samples

        return Contestant(run, threads)


def test_rates_are_samples_per_second() -> None:
    world = World()
    contestants = [world.contestant("fast", 0.25, samples=8), world.contestant("slow", 0.5, samples=8)]
    assert race(contestants, repeats=3, stint_s=2.0, clock=world.clock) == [[32.0] * 3, [16.0] * 3]


def test_contestants_take_turns_in_alternating_order() -> None:
    world = World()
    names = ("a", "b", "c")
    race([world.contestant(name, 1.0) for name in names], repeats=2, stint_s=1.0, clock=world.clock)
    turns = [call for index, call in enumerate(world.calls) if index == 0 or world.calls[index - 1] != call]
    assert turns == ["a", "b", "c", "b", "a"]


def test_the_first_call_of_a_turn_is_not_timed() -> None:
    world = World()

    def run() -> int:
        world.now += 0.75 if not world.calls else 0.5
        world.calls.append("x")
        return 1

    assert race([Contestant(run)], repeats=1, stint_s=1.0, clock=world.clock) == [[2.0]]


def test_a_hopeless_contestant_costs_one_call_a_turn() -> None:
    world = World()
    rates = race([world.contestant("hopeless", 10.0, samples=4)], repeats=3, stint_s=0.5, clock=world.clock)
    assert rates == [[0.4] * 3]
    assert len(world.calls) == 3


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_every_contestant_runs_with_its_threads_and_the_count_is_restored() -> None:
    seen: dict[int, set[int]] = {1: set(), 2: set()}
    world = World()

    def noting(threads: int) -> Contestant:
        def run() -> int:
            world.now += 1.0
            seen[threads].add(torch.get_num_threads())
            return 1

        return Contestant(run, threads)

    race([noting(1), noting(2)], repeats=2, stint_s=1.0, clock=world.clock)
    assert seen == {1: {1}, 2: {2}}
    assert torch.get_num_threads() == 3


def test_warming_up_tells_how_long_the_first_call_took() -> None:
    world = World()
    assert warm_up(world.contestant("x", 0.5), clock=world.clock) == 0.5
    assert len(world.calls) == 3


def test_ratios_are_taken_repeat_by_repeat() -> None:
    # Everything is half as fast in the second repeat: the rates spread, their ratio does not.
    rates, baseline = [300.0, 150.0, 330.0], [100.0, 50.0, 100.0]
    assert ratios(rates, baseline) == Spread(median=3.0, low=3.0, high=pytest.approx(3.3), n=3)


def test_a_spread_has_other_units() -> None:
    assert Spread(2.0, 1.0, 3.0, 7).scaled(10.0) == Spread(20.0, 10.0, 30.0, 7)


def test_a_spread_is_rounded_for_json() -> None:
    assert Spread.of([1.26, 2.0, 1.0]).as_dict(digits=1) == {"median": 1.3, "low": 1.0, "high": 2.0, "n": 3}
