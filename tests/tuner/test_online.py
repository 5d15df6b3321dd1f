"""The online rule on simulated machines: it settles near the optimum, stays, follows a drift, and respects walls."""

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bow.tuner import MeasurementWindow, OnlineTuner, StatisticalEfficiency, TunerDecision
from bow.tuner.online import FIRST_BACK_OFF, MIN_WINDOWS, MOST_CHANGES, SPAN, WARM_UP
from tests.tuner.simulated import (
    FAMILIES,
    HALF,
    RUNS,
    Curve,
    Disturbance,
    Training,
    falling,
    kneed,
    optima,
    peaked,
    saturating,
)

MOST = 16
WINDOWS = 600


def is_near(training: Training, curve: Curve) -> bool:
    """Whether it has settled within one learner of the optimum."""
    fewest, best = optima(curve, MOST)
    return training.settled_with is not None and fewest - 1 <= training.settled_with <= best + 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_settles_within_one_learner_of_the_optimum_and_stays(family: str) -> None:
    """The optimum: any number from the fewest learners within the threshold of the best to the fewest that are best."""
    curve = FAMILIES[family]
    _, best = optima(curve, MOST)
    near = drifts = 0
    for seed in RUNS:
        training = Training(OnlineTuner(1, MOST), curve, Disturbance(seed=seed)).run(WINDOWS)
        drifts += training.tuner.drifts
        if training.settled_at is None:
            continue
        near += is_near(training, curve)
        # Attempts become rare: three in each direction, and one more for each drift that noise looks like.
        attempts = 2 * (3 + training.tuner.drifts)
        assert training.num_changes_after(training.settled_at) <= attempts * 2 * (1 + best // 4 + 1)
    assert near >= 0.95 * len(RUNS)
    assert drifts <= 0.05 * len(RUNS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", ["two cores", "flat peak", "sharp peak", "one is best"])
def test_it_comes_down_from_too_many(family: str) -> None:
    near = 0
    for seed in HALF:
        training = Training(OnlineTuner(10, MOST), FAMILIES[family], Disturbance(seed=seed)).run(WINDOWS)
        near += is_near(training, FAMILIES[family])
    assert near >= 0.95 * len(HALF)


@pytest.mark.parametrize("family", FAMILIES)
def test_little_is_lost_once_it_has_settled(family: str) -> None:
    curve = FAMILIES[family]
    top = max(curve(k) for k in range(1, MOST + 1))
    for seed in RUNS[:5]:
        training = Training(OnlineTuner(1, MOST), curve, Disturbance(seed=seed)).run(1000)
        late = training.history[500:]
        assert sum(map(curve, late)) / len(late) > 0.93 * top


@pytest.mark.parametrize(("cores", "later"), [(3, 8), (8, 3)])
def test_it_follows_a_drift(cores: int, later: int) -> None:
    before, after, near = kneed(cores, 0.05), kneed(later, 0.05), 0
    for seed in HALF:
        training = Training(OnlineTuner(1, MOST), before, Disturbance(seed=seed)).run(300)
        training.curve = lambda k: 0.8 * after(k)  # what takes cores takes time from all
        training.run(400)
        near += is_near(training, after)
    assert near >= 0.95 * len(HALF)


def test_it_follows_a_drift_that_throughput_does_not_show() -> None:
    near = 0
    for seed in HALF:
        training = Training(OnlineTuner(1, MOST), kneed(3, 0.05), Disturbance(seed=seed)).run(200)
        training.curve = kneed(8, 0.05)  # the same with up to three learners
        training.run(700)
        near += training.settled_with in (7, 8, 9)
    assert near >= 0.95 * len(HALF)


def test_a_slow_drift_of_the_whole_machine_moves_nothing() -> None:
    for seed in RUNS[:20]:
        training = Training(OnlineTuner(1, MOST), kneed(4, 0.05), Disturbance(0.02, 0.05, seed)).run(200)
        for step in range(500):
            speed = 1 + 0.3 * math.sin(step / 100)
            training.curve = lambda k, speed=speed: speed * kneed(4, 0.05)(k)
            training.run(1)
        assert training.settled_with == 4


def calm() -> Disturbance:
    return Disturbance(0.0, 0.0)


def test_nothing_is_lost_bit_by_bit() -> None:
    def slope(learners: int) -> float:
        return 0.993 ** (MOST - learners)  # one fewer costs less than what one has to bring

    training = Training(OnlineTuner(MOST, MOST), slope, calm()).run(400)
    kept = training.settled_with
    assert kept == optima(slope, MOST)[0]
    training.curve = lambda k: 1.07 * slope(k)  # too little for a drift
    training.run(1600)
    assert training.tuner.drifts == 0
    assert training.settled_with == kept


def test_a_machine_that_goes_to_and_fro_is_not_followed_for_ever() -> None:
    training = Training(OnlineTuner(4, MOST), kneed(4, 0.1), calm())
    for turn in range(50):
        training.curve = lambda k, speed=0.7 + 0.3 * (turn % 2): speed * kneed(4, 0.1)(k)
        training.run(40)
    assert 2 <= training.tuner.drifts <= 6


def test_drifts_that_are_rare_are_followed_soon() -> None:
    training = Training(OnlineTuner(4, MOST), kneed(4, 0.1), calm()).run(200)
    for cores in (8, 4, 8, 4, 8, 4):
        training.curve = lambda k, cores=cores: kneed(cores, 0.1)(k) * (0.5 if cores == 4 else 1.0)
        training.run(250)
        assert training.settled_with == cores


def test_the_first_windows_behind_a_change_do_not_count() -> None:
    training = Training(OnlineTuner(1, MOST), kneed(4), calm()).run(100)
    first, second, *_ = training.tuner.changes
    assert first.window == WARM_UP + MIN_WINDOWS
    assert second.window == 2 * first.window


def test_after_removing_one_it_is_not_added_at_once() -> None:
    training = Training(OnlineTuner(8, 8), kneed(4), calm()).run(100)
    assert [change.learners for change in training.tuner.changes] == [7, 6, 5, 4, 3, 4]


def test_many_changes_are_followed_by_a_pause() -> None:
    training = Training(OnlineTuner(16, 32), kneed(16, 0.004), calm()).run(200)
    up_and_back, then = training.tuner.changes[:12], training.tuner.changes[12]
    assert up_and_back[-1].learners == 16
    assert then.window >= up_and_back[12 - MOST_CHANGES].window + SPAN


def test_stragglers_are_no_reason_to_change() -> None:
    for seed in RUNS[:20]:
        training = Training(OnlineTuner(4, MOST), kneed(4, 0.1), Disturbance(0.01, 0.15, seed)).run(300)
        assert training.settled_with == 4


@pytest.mark.parametrize("wall", [2, 5, 9])
def test_the_wall_is_never_crossed_twice(wall: int) -> None:
    for seed in RUNS[:20]:
        tuner = OnlineTuner(1, MOST)
        training = Training(tuner, saturating(0.0), Disturbance(seed=seed), wall=wall).run(800)
        assert training.crossings == [wall]
        assert tuner.memory_limit == wall
        assert training.settled_with == wall - 1
        assert max(training.history) == wall - 1


def test_memory_that_others_take_later_is_a_lower_wall() -> None:
    tuner = OnlineTuner(1, MOST)
    training = Training(tuner, kneed(8, 0.05), Disturbance(0.01, 0.0)).run(300)
    assert training.settled_with == 8
    tuner.failed(8)
    training.learners = 7
    training.run(600)
    assert tuner.memory_limit == 8
    assert training.settled_with == 7
    assert max(training.history[300:]) == 7


def test_one_learner_that_fails_stays_one() -> None:
    tuner = OnlineTuner(1, MOST)
    tuner.failed(1)
    assert tuner.learners == 1
    assert tuner.changes == []


def test_more_than_may_be_are_not_tried() -> None:
    training = Training(OnlineTuner(1, 5), saturating(0.0), Disturbance(0.01, 0.0)).run(400)
    assert max(training.history) == 5
    assert training.settled_with == 5
    assert training.tuner.memory_limit is None


def test_attempts_that_fail_become_rare() -> None:
    training = Training(OnlineTuner(4, MOST), kneed(4, 0.1), Disturbance(0.01, 0.0)).run(3000)
    ups = [change.window for change in training.tuner.changes if change.learners == 5]
    waits = [later - earlier for earlier, later in itertools.pairwise(ups)]
    assert len(ups) <= 7
    assert waits[0] >= FIRST_BACK_OFF
    assert all(later > 1.7 * earlier for earlier, later in itertools.pairwise(waits[:4]))


def test_what_a_calibration_has_found_is_not_tried_at_once() -> None:
    for seed in RUNS[:20]:
        tuner = OnlineTuner(4, MOST, calibrated=True)
        training = Training(tuner, kneed(4, 0.1), Disturbance(0.02, 0.02, seed)).run(FIRST_BACK_OFF - 1)
        assert tuner.changes == []
        assert tuner.settled
        training.run(400)
        assert tuner.changes[0].window >= FIRST_BACK_OFF
        assert training.settled_with == 4


def test_a_calibrated_number_follows_a_drift_before_the_wait_is_over() -> None:
    training = Training(OnlineTuner(4, MOST, calibrated=True), kneed(4, 0.1), calm()).run(20)
    training.curve = lambda k: 0.5 * kneed(8, 0.1)(k)
    training.run(30)
    assert training.tuner.changes[0].learners == 5


def test_what_has_just_been_seen_to_be_worse_is_not_tried_again_at_once() -> None:
    training = Training(OnlineTuner(1, MOST), kneed(4, 0.1), calm()).run(FIRST_BACK_OFF)
    assert [change.learners for change in training.tuner.changes] == [2, 3, 4, 5, 4]
    training.run(2 * FIRST_BACK_OFF)
    assert 3 in [change.learners for change in training.tuner.changes[5:]]  # by then it may be another machine


def test_somebody_else_may_change_the_learners() -> None:
    training = Training(OnlineTuner(1, MOST), kneed(6, 0.05), Disturbance(0.01, 0.0)).run(200)
    training.learners = 3
    training.tuner.update(MeasurementWindow(3000.0, 1.0, 3))
    assert training.tuner.learners == 3
    assert not training.tuner.settled
    assert training.run(300).settled_with == 6


def test_a_decision_that_was_not_carried_out_is_forgotten() -> None:
    tuner = OnlineTuner(1, MOST)
    steps = [tuner.update(MeasurementWindow(100.0, 1.0, 1)).step for _ in range(100)]
    assert set(steps) == {0, 1}
    assert steps.count(1) < 15


def test_windows_without_samples_say_nothing() -> None:
    tuner = OnlineTuner(1, MOST)
    for window in (MeasurementWindow(0.0, 1.0, 1), MeasurementWindow(10.0, 0.0, 1)):
        assert tuner.update(window) == TunerDecision()
    assert tuner.num_windows == 0


def test_the_size_of_windows_does_not_matter() -> None:
    histories = []
    for seconds in (1.0, 0.25):
        tuner, noise, history = OnlineTuner(1, MOST), Disturbance(), []
        for _ in range(200):
            history.append(tuner.learners)
            rate = noise.of(kneed(5)(tuner.learners))
            tuner.update(MeasurementWindow(rate * seconds, seconds, tuner.learners))
        histories.append(history)
    assert histories[0] == histories[1]


def test_reasons_are_given() -> None:
    training = Training(OnlineTuner(1, MOST), kneed(2, 0.1), Disturbance(0.0, 0.0)).run(120)
    whys = [change.why for change in training.tuner.changes]
    assert whys[0] == "whether 2 are better than 1"
    assert "3 give -10.0 % over 2" in whys
    assert "1 give -50.0 % over 2" in whys


@pytest.mark.parametrize("noise_scale", [16.0, 64.0, 1000.0])
def test_goodput_keeps_learners_away_that_do_not_help_learning(noise_scale: float) -> None:
    efficiency, curve = StatisticalEfficiency(noise_scale, batch_size=16), saturating(0.1)
    training = Training(OnlineTuner(1, MOST, efficiency=efficiency), curve, Disturbance(0.01, 0.0)).run(500)
    assert is_near(training, lambda k: curve(k) * efficiency(k))


def test_what_cannot_pay_is_not_even_tried() -> None:
    efficiency = StatisticalEfficiency(0.0, batch_size=16)  # without noise, a larger batch brings nothing
    training = Training(OnlineTuner(1, MOST, efficiency=efficiency), saturating(0.0), calm()).run(100)
    assert training.tuner.changes == []
    assert training.settled_with == 1


def test_goodput_follows_the_noise_scale() -> None:
    state = {"noise_scale": 1.0}
    tuner = OnlineTuner(1, MOST, efficiency=lambda k: StatisticalEfficiency(state["noise_scale"], 16)(k))
    training = Training(tuner, kneed(8, 0.05), Disturbance(0.01, 0.0)).run(300)
    assert training.settled_with in (1, 2)
    state["noise_scale"] = 1e5
    assert training.run(300).settled_with == 8


@given(
    peak=st.integers(1, 20),
    noise=st.floats(0.0, 0.3),
    straggling=st.floats(0.0, 0.3),
    start=st.integers(1, 20),
    most=st.integers(1, 20),
    wall=st.integers(2, 25),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_machine_the_promises_are_kept(peak, noise, straggling, start, most, wall, seed):
    start = min(start, wall - 1)
    tuner = OnlineTuner(start, most)
    chance = random.Random(seed)
    training = Training(tuner, peaked(0.02, 1 / peak**2), Disturbance(noise, straggling, seed), wall=wall)
    for _ in range(20):
        training.curve = kneed(chance.randint(1, 20), chance.choice([0.0, 0.1]))
        training.run(25)
    assert all(1 <= k <= max(start, min(most, wall)) for k in training.history)
    assert training.crossings in ([], [wall])
    times = [change.window for change in tuner.changes if "ran out of memory" not in change.why]
    assert all(later > earlier for earlier, later in itertools.pairwise(times))
    most = MOST_CHANGES + 2 * (1 + 20 // 4)
    for first in range(len(times) - most):
        assert times[first + most] - times[first] >= SPAN


def test_machines_of_one_learner_are_left_alone() -> None:
    training = Training(OnlineTuner(1, 1), falling(0.1)).run(50)
    assert training.settled_with == 1
    assert training.tuner.changes == []
    assert dataclasses.asdict(TunerDecision()) == {"step": 0, "why": ""}
