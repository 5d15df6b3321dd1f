"""The limit of `alpha`, against the eigenvalues of the recurrence that the averaging follows without gradients."""

import functools
import re

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

import bow
from tests.oracle import spectral_radius


def limit(k: int, mu: float) -> float:
    return 2 * (1 + mu) / (1 + k + mu)


def replicas(sync: object, learners: int, lr: float = 0.1) -> bow.Replicas:
    return bow.Replicas(
        torch.nn.Linear(3, 2, dtype=torch.float64),
        torch.nn.functional.cross_entropy,
        optimizer=functools.partial(torch.optim.SGD, lr=lr),
        learners=learners,
        engine="eager",
        sync=sync,
        device="cpu",
    )


BATCH = (torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))


@given(
    k=st.integers(1, 200),
    mu=st.floats(0, 0.99),
    alpha=st.one_of(st.floats(1e-3, 3.0), st.floats(0.95, 1.05).map(lambda share: (share,))),
)
@example(k=36, mu=0.9, alpha=0.1)
@example(k=37, mu=0.9, alpha=0.1)
@example(k=1, mu=0.0, alpha=1.0 + 1e-6)
def test_alpha_is_refused_exactly_where_averaging_would_grow(k: int, mu: float, alpha: float | tuple[float]) -> None:
    alpha = alpha[0] * limit(k, mu) if isinstance(alpha, tuple) else alpha  # the tuple: close to the limit
    radius = spectral_radius(k, alpha, mu)
    # At the limit an eigenvalue is -1 up to rounding; with alpha near 0 and mu = 0 one is near +1, but below.
    assume(abs(alpha / limit(k, mu) - 1) > 1e-7)
    sync = bow.SMA(alpha=alpha, mu=mu)
    if radius < 1:
        sync.check(k)
    else:
        with pytest.raises(bow.BowError, match="alpha"):
            sync.check(k)


@given(k=st.integers(2, 500), mu=st.floats(0, 0.99))
def test_the_default_alpha_is_stable_for_any_number_of_learners(k: int, mu: float) -> None:
    bow.SMA(mu=mu).check(k)
    assert spectral_radius(k, 1 / k, mu) < 1


def test_at_the_limit_itself_alpha_is_refused() -> None:
    assert spectral_radius(3, 0.5, 0.0) == pytest.approx(1.0)
    with pytest.raises(bow.BowError):
        bow.EASGD(alpha=0.5).check(3)


@pytest.mark.parametrize(("k", "mu", "alpha"), [(37, 0.9, 0.1), (4, 0.5, 0.9), (8, 0.0, 0.5)])
def test_the_message_names_the_value_and_the_limit(k: int, mu: float, alpha: float) -> None:
    with pytest.raises(bow.BowError) as caught:
        replicas(bow.SMA(alpha=alpha, mu=mu), k)
    numbers = [float(number) for number in re.findall(r"\d+\.\d+", str(caught.value))]
    assert alpha in numbers
    assert any(number == pytest.approx(limit(k, mu), rel=1e-3) for number in numbers)
    assert "\n" not in str(caught.value)


def test_a_learner_that_would_make_averaging_unstable_is_not_added() -> None:
    trained = replicas(bow.EASGD(alpha=0.6), learners=2)  # limits: 0.667 with two learners, 0.5 with three
    with pytest.raises(bow.BowError, match=r"0\.5"):
        trained.resize(trained.learners + 1)
    assert trained.learners == 2
    assert trained.round([BATCH, BATCH]).shape == (2,)


@pytest.mark.parametrize(("k", "mu"), [(2, 0.0), (3, 0.5), (8, 0.9), (1, 0.5)])
@pytest.mark.parametrize("share", [0.2, 0.98])
def test_without_gradients_deviations_shrink_at_the_predicted_rate(k: int, mu: float, share: float) -> None:
    alpha = share * limit(k, mu)
    trained = replicas(bow.SMA(alpha=alpha, mu=mu, restart=None), k, lr=0.0)
    trained.W.add_(1.0)  # all by the same, so that only the mean deviates
    deviations = []
    for _ in range(60):
        trained.round([BATCH] * k)
        deviations.append(float((trained.W - trained.z).abs().max()))
    growth = (max(deviations[-10:]) / max(deviations[:10])) ** (1 / 50)
    assert growth == pytest.approx(spectral_radius(k, alpha, mu), abs=0.02)
    assert growth < 1
    np.testing.assert_allclose(trained.W, trained.W[:1].expand_as(trained.W), atol=1e-12)
