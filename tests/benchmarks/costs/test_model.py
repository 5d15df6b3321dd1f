"""How good predictions are, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.costs.climbing import accuracy, r_squared

positive = st.floats(1e-6, 1e6)
pairs = st.lists(st.tuples(positive, positive), min_size=1, max_size=20)


@given(pairs)
def test_accuracy_is_the_papers(both: list[tuple[float, float]]) -> None:
    predicted, actual = map(np.array, zip(*both, strict=True))
    expected = 1 - np.abs((predicted - actual) / actual).mean()
    assert accuracy(list(predicted), list(actual)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(pairs)
def test_r_squared_is_the_part_of_the_variance_that_is_explained(both: list[tuple[float, float]]) -> None:
    predicted, actual = map(np.array, zip(*both, strict=True))
    varied = ((actual - actual.mean()) ** 2).sum()
    if varied > 1e-9 * (actual**2).sum():
        expected = 1 - ((predicted - actual) ** 2).sum() / varied
        assert r_squared(list(predicted), list(actual)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_constant_values_are_explained_or_not() -> None:
    assert r_squared([2.0, 2.0], [2.0, 2.0]) == 1.0
    assert r_squared([2.0, 3.0], [2.0, 2.0]) == 0.0


def test_exact_predictions_have_all_of_both_and_none_has_nothing() -> None:
    assert accuracy([1.0, 2.0], [1.0, 2.0]) == r_squared([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert accuracy([0.0, 0.0], [1.0, 2.0]) == 0.0
