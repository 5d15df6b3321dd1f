"""Devices that differ: together they come close to the best of all combinations, one change at a time."""

import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from bow.tuner import DeviceTuners, MeasurementWindow, OnlineTuner, balance
from tests.tuner.simulated import Disturbance, kneed, peaked, saturating

MOST = 8
Round = Callable[[int], float]
"""Seconds that a device takes for a round, by learners."""


def round_of(curve: Callable[[int], float], speed: float) -> Round:
    return lambda k: k / (speed * curve(k))


PAIRS = {
    "alike": (round_of(kneed(4, 0.05), 1.0), round_of(kneed(4, 0.05), 1.0)),
    "one twice as fast": (round_of(kneed(4, 0.05), 2.0), round_of(kneed(4, 0.05), 1.0)),
    "one with fewer cores": (round_of(peaked(0.05, 0.03), 1.0), round_of(saturating(0.3), 1.0)),
    "one hopelessly slow": (round_of(kneed(6, 0.05), 1.0), round_of(kneed(1, 0.3), 0.3)),
}


def throughput(devices: tuple[Round, ...], learners: tuple[int, ...]) -> float:
    seconds = max(device(count) for device, count in zip(devices, learners, strict=True))
    return sum(learners) / seconds


def train(devices: tuple[Round, ...], tuners: DeviceTuners, windows: int, noise: Disturbance) -> list[tuple[int, ...]]:
    history = []
    for _ in range(windows):
        learners = tuple(tuner.learners for tuner in tuners.tuners)
        history.append(learners)
        decisions = tuners.update(1000 * noise.of(throughput(devices, learners)), 1.0)
        assert sum(decision.step != 0 for decision in decisions) <= 1
        assert all(tuner.learners == n + d.step for tuner, n, d in zip(tuners.tuners, learners, decisions, strict=True))
    return history


def best_of(devices: tuple[Round, ...]) -> float:
    return max(throughput(devices, both) for both in itertools.product(range(1, MOST + 1), repeat=len(devices)))


@pytest.mark.parametrize("pair", PAIRS)
def test_the_balance_is_the_best_of_all_combinations(pair: str) -> None:
    devices = PAIRS[pair]
    measured = [{k: device(k) for k in range(1, MOST + 1)} for device in devices]
    assert throughput(devices, balance(measured)) == pytest.approx(best_of(devices))
    three = (*devices, round_of(saturating(0.1), 1.5))
    measured.append({k: three[2](k) for k in range(1, MOST + 1)})
    assert throughput(three, balance(measured)) == pytest.approx(best_of(three))


def test_of_equal_combinations_the_one_with_fewest_learners_is_taken() -> None:
    assert balance([{1: 1.0, 2: 2.0, 4: 4.0}, {1: 1.0, 2: 2.0}]) == (1, 1)


@pytest.mark.parametrize("pair", PAIRS)
def test_devices_that_begin_balanced_stay_close_to_the_best_combination(pair: str) -> None:
    devices, good = PAIRS[pair], 0
    start = balance([{k: device(k) for k in (1, 2, 4, 8)} for device in devices])
    for seed in range(20):
        tuners = DeviceTuners([OnlineTuner(count, MOST) for count in start])
        late = train(devices, tuners, 800, Disturbance(0.02, 0.02, seed))[-100:]
        good += sum(throughput(devices, both) for both in late) >= 0.93 * best_of(devices) * len(late)
    assert good >= 19


@pytest.mark.sample(2)
@pytest.mark.parametrize("pair", PAIRS)
def test_devices_find_a_combination_that_none_can_better_alone(pair: str) -> None:
    devices, good = PAIRS[pair], 0
    for seed in range(20):
        tuners = DeviceTuners([OnlineTuner(1, MOST) for _ in devices])
        history = train(devices, tuners, 800, Disturbance(0.01, 0.0, seed))
        (a, b), _ = Counter(history[-200:]).most_common(1)[0]
        others = [(max(a - 1, 1), b), (min(a + 1, MOST), b), (a, max(b - 1, 1)), (a, min(b + 1, MOST))]
        good += throughput(devices, (a, b)) >= 0.955 * max(throughput(devices, other) for other in others)
    assert good >= 19


def test_all_devices_settle_and_are_tried_again_in_turn() -> None:
    devices = PAIRS["one twice as fast"]
    tuners = DeviceTuners([OnlineTuner(1, MOST) for _ in devices])
    turns, settled = [], []
    for _ in range(1500):
        learners = tuple(tuner.learners for tuner in tuners.tuners)
        tuners.update(throughput(devices, learners), 1.0)
        turns.append(tuners.turn)
        settled.append(tuners.settled)
    assert any(settled)
    assert {turn for turn, done in zip(turns[300:], settled[300:], strict=True) if done} == {0, 1}
    assert sum(settled[300:]) > 600


def test_what_one_device_does_gives_the_others_a_turn() -> None:
    # Two learners on the first pay only once rounds take longer because of the second.
    devices = (round_of(lambda k: k / (0.1 + 0.9 * k), 1.0), round_of(lambda k: k / (0.7 + 0.3 * k), 1.0))
    tuners = DeviceTuners([OnlineTuner(1, MOST) for _ in devices])
    history = train(devices, tuners, 200, Disturbance(0.0, 0.0))
    first, second = ([both[device] for both in history] for device in (0, 1))
    assert max(first[:30]) == 2
    assert first[30] == 1
    grown = second.index(7)
    assert 3 in first[grown : grown + 100]
    assert tuners.tuners[0].learners == 3


def test_a_drift_gives_every_device_a_turn() -> None:
    tuners = DeviceTuners([OnlineTuner(1, MOST), OnlineTuner(1, MOST)])
    noise = Disturbance(0.01, 0.0)
    train((round_of(kneed(2, 0.05), 1.0), round_of(kneed(2, 0.05), 1.0)), tuners, 400, noise)
    train((round_of(kneed(4, 0.05), 2.0), round_of(kneed(4, 0.05), 2.0)), tuners, 800, noise)
    assert all(tuner.learners >= 3 for tuner in tuners.tuners)


def test_a_drift_that_leaves_one_device_as_it_is_restarts_the_next() -> None:
    calm, slower = Disturbance(0.0, 0.0), tuple(round_of(kneed(2, 0.05), speed) for speed in (0.5, 0.5))
    tuners = DeviceTuners([OnlineTuner(2, MOST), OnlineTuner(2, MOST)])
    while not tuners.settled:
        train(tuple(round_of(kneed(2, 0.05), 1.0) for _ in range(2)), tuners, 1, calm)
    turn = tuners.turn
    tuner, drifts = tuners.tuners[turn], tuners.tuners[turn].drifts
    while tuners.turn == turn:
        train(slower, tuners, 1, calm)
    assert tuner.learners == 2
    assert tuner.drifts == drifts + 1
    assert not tuners.settled


def test_a_wall_of_one_device_is_no_wall_of_another() -> None:
    devices = PAIRS["alike"]
    tuners = DeviceTuners([OnlineTuner(2, MOST), OnlineTuner(2, MOST)])
    while not tuners.settled:
        train(devices, tuners, 1, Disturbance(0.0, 0.0))
    before, other = [tuner.learners for tuner in tuners.tuners], 1 - tuners.turn
    tuners.failed(other, before[other])
    assert tuners.tuners[other].learners == before[other] - 1
    assert tuners.tuners[other].memory_limit == before[other]
    assert tuners.tuners[tuners.turn].memory_limit is None
    assert not tuners.settled  # throughput is another one now


def test_one_device_is_tuned_as_alone() -> None:
    alone, noise, again = OnlineTuner(1, MOST), Disturbance(), Disturbance()
    together = DeviceTuners([OnlineTuner(1, MOST)])
    device = (round_of(kneed(4, 0.05), 1.0),)
    history = train(device, together, 150, noise)
    for (learners,) in history:
        assert alone.learners == learners
        alone.update(MeasurementWindow(1000 * again.of(throughput(device, (learners,))), 1.0, learners))
