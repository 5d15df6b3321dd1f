"""Bounds on throughput: no curve with diminishing returns exceeds them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.tuner.lane import Curve
from tests.tuner.simulated import dipping, kneed, peaked, saturating

CURVES = st.one_of(
    st.builds(saturating, st.floats(0.0, 1.0)),
    st.builds(peaked, st.floats(0.0, 0.5), st.floats(0.0, 0.05)),
    st.builds(kneed, st.integers(1, 40)),
)
MEASURED = st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True).map(sorted)


@given(CURVES, MEASURED, st.integers(1, 64))
def test_more_learners_than_measured_bring_no_more_than_the_bound(curve, measured: list[int], learners: int) -> None:
    known = Curve(tuple((k, curve(k)) for k in measured))
    if learners >= measured[-1]:
        assert curve(learners) <= known.beyond(learners) * (1 + 1e-9)


@given(CURVES, MEASURED.filter(lambda counts: counts[-1] <= 12), st.integers(1, 64))
def test_learners_between_measured_ones_bring_no_more_than_the_bound(curve, measured: list[int], learners) -> None:
    known = Curve(tuple((k, curve(k)) for k in measured))
    concave = all(2 * curve(k) >= curve(k - 1) + curve(k + 1) - 1e-9 for k in range(2, measured[-1]))
    if concave and measured[0] < learners < measured[-1] and learners not in measured:
        assert curve(learners) <= known.between(learners) * (1 + 1e-9)


def test_the_cost_of_averaging_does_not_look_like_diminishing_returns() -> None:
    curve = dipping(0.3, saturating(0.0))
    assert Curve(((1, curve(1)), (2, curve(2)))).beyond(8) == pytest.approx(curve(8))
