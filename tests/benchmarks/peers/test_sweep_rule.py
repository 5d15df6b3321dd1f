"""How batch size and learning rate are found, on made-up trainings."""

from __future__ import annotations

import math

import pytest

from benchmarks.peers.sweep_rule import MARGIN, best, climb, fastest, score, sweep
from benchmarks.peers.training import Choice, Training
from tests.benchmarks.peers.made_up import diverged, failed, not_reached, training

SIZES, RATES = (8, 16, 32, 64, 128), (0.01, 0.02, 0.04, 0.08, 0.16)


class Valley:
    """Trainings whose time to the target grows with the distance, in steps of the grid, from a best setting."""

    def __init__(self, size: int, lr: float, limit: float = math.inf) -> None:
        self.best = size, lr
        self.limit = limit
        self.asked: list[tuple[int, float, float]] = []

    def train(self, size: int, lr: float, limit_s: float) -> Training:
        self.asked.append((size, lr, limit_s))
        distance = abs(math.log2(size / self.best[0])) + 2 * abs(math.log2(lr / self.best[1]))
        if lr > self.limit:
            return diverged("pytorch", lr=lr)
        return training(batch_size=size, lr=lr, throughput=10 / (1 + distance))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lr", RATES)
def test_the_best_of_a_valley_is_found_and_nothing_is_trained_twice(size: int, lr: float) -> None:
    valley = Valley(size, lr)
    found = sweep(SIZES, RATES, 1000.0, valley.train)
    assert (found.choice.batch_size, found.choice.lr) == (size, lr)
    settings = [asked[:2] for asked in valley.asked]
    assert len(settings) == len(set(settings)) < len(SIZES) * len(RATES)


def test_it_begins_in_the_middle_and_goes_on_from_the_best_of_the_neighbour() -> None:
    valley = Valley(64, 0.08)
    sweep(SIZES, RATES, 1000.0, valley.train)
    assert [asked[:2] for asked in valley.asked[:3]] == [(32, 0.04), (32, 0.08), (32, 0.16)]
    assert valley.asked[3][:2] == (64, 0.08)


def test_a_training_may_take_little_longer_than_the_shortest_so_far() -> None:
    valley = Valley(32, 0.04)
    sweep(SIZES, RATES, 1000.0, valley.train)
    assert [asked[2] for asked in valley.asked] == [1000.0] + [MARGIN * 40.0] * (len(valley.asked) - 1)


def test_where_training_diverges_the_way_leads_down() -> None:
    valley = Valley(32, 0.01, limit=0.015)
    assert sweep(SIZES, RATES, 1000.0, valley.train).choice.lr == 0.01
    assert climb(5, 4, lambda place: score(diverged("pytorch", lr=RATES[place]))) == 0


def test_where_the_target_is_not_reached_accuracy_decides() -> None:
    assert score(training()) < score(not_reached("pytorch")) < score(diverged("pytorch")) < score(failed("pytorch"))
    assert score(training(ending="time used up", best=0.88)) < score(not_reached("pytorch"))


def test_a_grid_of_one_setting_is_one_training() -> None:
    valley = Valley(32, 0.04)
    assert sweep((16,), (0.02,), 5.0, valley.train).choice.lr == 0.02
    assert valley.asked == [(16, 0.02, 5.0)]


def test_the_finals_get_the_best_two_that_reached_the_target() -> None:
    swept = [training(lr=lr, looks=looks) for lr, looks in ((0.01, 6), (0.02, 4), (0.04, 5))]
    assert [found.choice.lr for found in best(swept, 2)] == [0.02, 0.04]
    assert [found.choice.lr for found in best([not_reached("pytorch"), swept[1]], 2)] == [0.02]
    assert [found.ending for found in best([diverged("pytorch"), not_reached("pytorch")], 2)] == ["epochs used up"]


def rehearsal(threads: int, throughput: float) -> Training:
    made = training(throughput=throughput)
    return Training(Choice("pytorch", 16, 0.01, threads), 0, "rehearsal", "epochs used up", made.looks)


def test_one_disturbed_rehearsal_does_not_decide_on_threads() -> None:
    found = fastest(
        [rehearsal(threads, rate) for threads, rate in ((1, 10), (2, 2), (1, 30), (2, 14), (1, 11), (2, 15))]
    )
    assert found.choice.threads == 2
    assert found.throughput == pytest.approx(14.0)
    assert fastest([failed("pytorch"), rehearsal(2, 5.0)]).choice.threads == 2
