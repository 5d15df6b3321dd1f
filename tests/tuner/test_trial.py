"""Settings, candidates, trials."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bow.errors import SettingError
from bow.tuner import EngineSetting, doubling
from bow.tuner.record import ThroughputCurve
from tests.tuner.simulated import dipping, kneed, peaked, saturating


def test_a_setting_says_what_it_is() -> None:
    assert str(EngineSetting("eager", threads=2)) == "eager, 1 learner, 2 threads"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EngineSetting("graph", learners=0), "learners must be a whole number of at least 1, got 0"),
        (lambda: EngineSetting("graph", threads=True), "threads must be a whole number of at least 1, got True"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


@given(st.integers(1, 300))
def test_doubling_ends_with_the_most(most: int) -> None:
    counts = doubling(most)
    assert counts[0] == 1
    assert counts[-1] == most
    assert all(a < b <= 2 * a for a, b in itertools.pairwise(counts))


CURVES = st.one_of(
    st.builds(saturating, st.floats(0.0, 1.0)),
    st.builds(peaked, st.floats(0.0, 0.5), st.floats(0.0, 0.05)),
    st.builds(kneed, st.integers(1, 40)),
)
MEASURED = st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True).map(sorted)


@given(CURVES, MEASURED, st.integers(1, 64))
def test_more_learners_than_measured_bring_no_more_than_the_bound(curve, measured: list[int], learners: int) -> None:
    known = ThroughputCurve(tuple((k, curve(k)) for k in measured))
    if learners >= measured[-1]:
        assert curve(learners) <= known.beyond(learners) * (1 + 1e-9)


@given(CURVES, MEASURED.filter(lambda counts: counts[-1] <= 12), st.integers(1, 64))
def test_learners_between_measured_ones_bring_no_more_than_the_bound(curve, measured: list[int], learners) -> None:
    known = ThroughputCurve(tuple((k, curve(k)) for k in measured))
    concave = all(2 * curve(k) >= curve(k - 1) + curve(k + 1) - 1e-9 for k in range(2, measured[-1]))
    if concave and measured[0] < learners < measured[-1] and learners not in measured:
        assert curve(learners) <= known.between(learners) * (1 + 1e-9)


def test_the_cost_of_averaging_does_not_look_like_diminishing_returns() -> None:
    curve = dipping(0.3, saturating(0.0))
    assert ThroughputCurve(((1, curve(1)), (2, curve(2)))).beyond(8) == pytest.approx(curve(8))
