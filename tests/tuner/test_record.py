"""Estimates from noisy measurements."""

import math
import random
import statistics

from hypothesis import given
from hypothesis import strategies as st

from bow.tuner.record import MIN_NOISE, LogEstimate, estimate, noise_from, steps_of

RATES = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9)


def test_noise_is_found_whatever_outliers_and_drift_there_are() -> None:
    noise = random.Random(0)
    drifting = [100 * math.exp(0.002 * i + noise.gauss(0, 0.04)) for i in range(200)]
    drifting[::11] = [rate / 3 for rate in drifting[::11]]
    assert 0.03 < noise_from(steps_of(drifting[:100]) + steps_of(drifting[100:])) < 0.06


def test_noise_of_measurements_that_agree_by_chance_is_not_zero() -> None:
    assert noise_from(steps_of([7.0, 7.0, 7.0])) == MIN_NOISE
    assert noise_from([*steps_of([7.0]), *steps_of([])]) == MIN_NOISE


def test_the_stated_error_is_that_of_medians() -> None:
    noise = random.Random(1)
    medians = [estimate([100 * math.exp(noise.gauss(0, 0.05)) for _ in range(9)], 0.05) for _ in range(2000)]
    found = statistics.stdev(each.log for each in medians)
    assert 0.85 < found / medians[0].error < 1.05


@given(RATES, st.floats(0.1, 10.0), st.floats(0.0, 0.5))
def test_gains_do_not_depend_on_units(rates: list[float], factor: float, noise: float) -> None:
    scaled = estimate([factor * rate for rate in rates], noise).over(estimate(rates, noise))
    assert math.isclose(scaled.value, factor, rel_tol=1e-9)


@given(st.floats(-1, 1), st.floats(1e-4, 0.2), st.floats(-0.2, 0.2))
def test_a_verdict_is_never_both(log: float, error: float, bar: float) -> None:
    exceeds = LogEstimate(log, error).exceeds(bar)
    assert LogEstimate(log + 5 * error + 2, error).exceeds(bar) is True
    assert LogEstimate(log - 5 * error - 2, error).exceeds(bar) is False
    if exceeds is not None:
        assert exceeds == (log > math.log1p(bar))
