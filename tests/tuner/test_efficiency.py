"""Statistical efficiency against the truth: gradients and learners made up with NumPy, of which everything is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.tuner import Moments, RunningMoments, StatisticalEfficiency, moments, repulsion
from bow.tuner.efficiency import coherence, noise_efficiency, spread_factor

PARAMETERS = 100
DEVIATIONS = np.linspace(0.5, 3.0, PARAMETERS)
"""Of one sample's gradient, by parameter."""


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def sums(vectors: np.ndarray) -> tuple[float, float]:
    """What an engine has to give: mean of the squared norms, squared norm of the mean."""
    return float((vectors**2).sum(1).mean()), float((vectors.mean(0) ** 2).sum())


def gradients(random: np.random.Generator, mean: np.ndarray, batch_size: int, learners: int) -> np.ndarray:
    noise = random.standard_normal((learners, PARAMETERS)) * DEVIATIONS
    return mean + noise / math.sqrt(batch_size)


@pytest.mark.parametrize("learners", [2, 3, 16])
def test_moments_are_unbiased(learners: int, random: np.random.Generator) -> None:
    mean = np.full(PARAMETERS, 0.1)
    found = [moments(*sums(gradients(random, mean, 16, learners)), learners) for _ in range(3000)]
    signals, noises = [each.signal for each in found], [each.noise for each in found]
    for values, truth in ((signals, (mean**2).sum()), (noises, (DEVIATIONS**2).sum() / 16)):
        error = np.std(values) / math.sqrt(len(values))
        assert abs(np.mean(values) - truth) < 4 * error
        assert error < 0.1 * truth


def test_the_noise_scale_is_found_while_learners_come_and_go(random: np.random.Generator) -> None:
    mean, running = np.full(PARAMETERS, 0.2), RunningMoments(memory=200.0)
    truth = (DEVIATIONS**2).sum() / (mean**2).sum()
    for learners in (2, 8, 1, 4):
        for _ in range(200):
            running.add(*sums(gradients(random, mean, 8, learners)), learners)
    found = running.noise_scale(batch_size=8)
    assert found == pytest.approx(truth, rel=0.1)


def test_the_noise_scale_follows_the_training(random: np.random.Generator) -> None:
    running = RunningMoments(memory=50.0)
    for scale in (1.0, 0.3):
        for _ in range(300):
            running.add(*sums(gradients(random, np.full(PARAMETERS, scale), 8, 8)), 8)
    assert running.noise_scale(8) == pytest.approx((DEVIATIONS**2).sum() / (0.3**2 * PARAMETERS), rel=0.15)


def test_gradients_without_signal_have_a_noise_scale_without_end() -> None:
    running = RunningMoments()
    assert running.noise_scale(8) is None
    assert running.value is None
    running.add(mean_square=4.0, square_of_mean=1.0, vectors=4)
    assert running.value == Moments(signal=0.0, noise=4.0)
    assert running.noise_scale(8) == math.inf


def test_rounds_count_by_their_degrees_of_freedom() -> None:
    running = RunningMoments(memory=1e9)
    running.add(mean_square=2.0, square_of_mean=1.0, vectors=2)  # signal 0, noise 2
    running.add(mean_square=9.0, square_of_mean=3.0, vectors=4)  # signal 1, noise 8
    assert running.value is not None
    assert running.value.signal == pytest.approx(0.75)
    assert running.value.noise == pytest.approx(6.5)


def test_rounds_that_say_nothing_change_nothing() -> None:
    running = RunningMoments()
    for mean_square, learners in ((math.nan, 2), (math.inf, 2), (1.0, 1)):
        running.add(mean_square, 0.5, learners)
    assert running.value is None


@pytest.mark.parametrize("learners", [2, 8, 32])
def test_noise_efficiency_is_the_progress_of_the_best_step_per_sample(
    learners: int, random: np.random.Generator
) -> None:
    # On |w|^2 / 2 a step of length e from w brings e |G|^2 - e^2 (|G|^2 + noise / B) / 2, at most |G|^4 / (2 E|g|^2).
    w, batch_size = np.full(PARAMETERS, 0.2), 8

    def progress(learners: int) -> float:
        steps = np.stack([gradients(random, w, batch_size, learners).mean(0) for _ in range(2000)])
        lengths = np.linspace(0.01, 1.0, 200)
        losses = [(w**2).sum() / 2 - e * (steps @ w).mean() + e**2 * (steps**2).sum(1).mean() / 2 for e in lengths]
        return (w**2).sum() / 2 - min(losses)

    noise_scale = (DEVIATIONS**2).sum() / (w**2).sum()
    found = progress(learners) / (learners * progress(1))
    assert found == pytest.approx(noise_efficiency(noise_scale, batch_size, learners), rel=0.07)


def spread_of_sma(
    random: np.random.Generator,
    learners: int,
    alpha: float,
    lr: float,
    momentum: float,
    curvature: float,
    mu: float = 0.5,
    rounds: int = 3000,
) -> float:
    """What `moments` says of `w_j - z` in SMA, where gradients have noise, and a slope away from the other learners."""
    z = z_prev = np.zeros(PARAMETERS)
    w, velocity = np.zeros((learners, PARAMETERS)), np.zeros((learners, PARAMETERS))
    spreads = []
    for index in range(rounds):
        corrections = alpha * (w - z)
        slope = curvature * (w - w.mean(0))
        velocity = momentum * velocity + slope + random.standard_normal(w.shape)
        w = w - lr * velocity - corrections
        z, z_prev = z + corrections.sum(0) + mu * (z - z_prev), z
        if index > rounds // 5:
            spreads.append(moments(*sums(w - z), learners).noise)
    return float(np.mean(spreads))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("learners", [2, 8])
def test_gradient_noise_alone_spreads_learners_as_predicted(
    learners: int, momentum: float, random: np.random.Generator
) -> None:
    alpha, lr = 1 / learners, 0.01
    spread = spread_of_sma(random, learners, alpha, lr, momentum, curvature=0.0)
    assert spread == pytest.approx(lr**2 * PARAMETERS * spread_factor(1 - alpha, momentum), rel=0.05)
    found = repulsion(spread, PARAMETERS, lr, alpha, momentum)
    assert abs(found) < 0.02 * alpha
    assert coherence(found, alpha, momentum) > 0.93


@pytest.mark.parametrize(("lr", "curvature"), [(0.01, 4.0), (0.01, -4.0), (0.02, -4.0)])
def test_curvature_is_found_in_the_spread(lr: float, curvature: float, random: np.random.Generator) -> None:
    spread = spread_of_sma(random, 4, 0.25, lr, 0.0, curvature)
    assert repulsion(spread, PARAMETERS, lr, 0.25) == pytest.approx(-lr * curvature, rel=0.1)


def test_what_is_found_with_few_learners_predicts_the_spread_with_many(random: np.random.Generator) -> None:
    lr, curvature = 0.01, -4.0
    found = repulsion(spread_of_sma(random, 2, 1 / 2, lr, 0.0, curvature), PARAMETERS, lr, 1 / 2)
    for learners in (4, 8):
        alpha = 1 / learners
        explained = lr**2 * PARAMETERS * spread_factor(1 - alpha, 0.0)
        share = explained / spread_of_sma(random, learners, alpha, lr, 0.0, curvature)
        assert coherence(found, alpha) == pytest.approx(share, rel=0.15)
    assert coherence(found, 1 / 32) == 0.0  # alpha = 0.031 does not hold what moves apart by 0.04


def test_momentum_makes_learners_move_apart_faster(random: np.random.Generator) -> None:
    spread = spread_of_sma(random, 4, 0.25, 0.001, 0.9, curvature=-4.0)
    assert repulsion(spread, PARAMETERS, 0.001, 0.25, 0.9) == pytest.approx(0.001 * 4.0 / (1 - 0.9), rel=0.4)


@given(st.floats(0.0, 0.999), st.floats(0.0, 0.99), st.floats(0.01, 1.0))
def test_the_root_that_made_a_spread_is_found(root: float, momentum: float, alpha: float) -> None:
    spread = spread_factor(root, momentum) * 0.1**2 * 3.0
    assert repulsion(spread, 3.0, 0.1, alpha, momentum) == pytest.approx(root - (1 - alpha), abs=1e-6)


def test_without_noise_or_steps_nothing_is_known_of_repulsion() -> None:
    assert repulsion(1.0, 0.0, 0.1, 0.5) == repulsion(1.0, 1.0, 0.0, 0.5) == 0.0


EFFICIENCIES = st.builds(
    StatisticalEfficiency,
    noise_scale=st.one_of(st.none(), st.just(math.inf), st.floats(0.0, 1e6)),
    batch_size=st.integers(1, 512),
    repulsion=st.floats(-1.0, 0.2),
    momentum=st.floats(0.0, 0.95),
)


@given(EFFICIENCIES, st.integers(1, 100))
def test_efficiency_falls_with_learners_from_one(efficiency: StatisticalEfficiency, learners: int) -> None:
    assert efficiency(1) == 1.0
    assert 0.0 <= efficiency(learners + 1) <= efficiency(learners) + 1e-12


@given(st.floats(0.0, 1e6), st.integers(1, 512), st.integers(1, 100))
def test_goodput_never_falls_by_gradient_noise_alone(noise_scale: float, batch_size: int, learners: int) -> None:
    efficiency = StatisticalEfficiency(noise_scale, batch_size)
    assert (learners + 1) * efficiency(learners + 1) >= learners * efficiency(learners) * (1 - 1e-12)


def test_a_fixed_alpha_holds_any_number() -> None:
    fixed = StatisticalEfficiency(math.inf, 16, repulsion=0.05, alpha=0.1)
    assert fixed(2) == fixed(64) > 0.0
    assert StatisticalEfficiency(math.inf, 16, repulsion=0.05)(64) == 0.0
