"""The roofline: arithmetic or memory, whichever is longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cost_models import Analytic, Roofline, Threads, Work
from bow.errors import SettingError

MACHINE = Roofline(1e12, 1e11, latency_s=1e-6, cores=8, bandwidth_cores=2)


@given(st.floats(0.0, 1e12), st.floats(0.0, 1e12), st.integers(1, 20))
def test_neither_roof_is_broken(flops: float, bytes_moved: float, threads: int) -> None:
    seconds = MACHINE.time_s(flops, bytes_moved, threads) - MACHINE.latency_s
    used = min(threads, 8)
    roofs = flops / (1e12 * used / 8), bytes_moved / (1e11 * min(threads, 2) / 2)
    assert seconds == pytest.approx(max(roofs), rel=1e-6, abs=1e-12)


def test_threads_beyond_the_cores_bring_nothing() -> None:
    assert MACHINE.time_s(1e9, 0.0, 9) == MACHINE.time_s(1e9, 0.0, 8) < MACHINE.time_s(1e9, 0.0, 7)


def test_bandwidth_is_all_used_by_fewer_threads() -> None:
    assert MACHINE.time_s(0.0, 1e9, 2) == MACHINE.time_s(0.0, 1e9, 8) < MACHINE.time_s(0.0, 1e9, 1)


def test_a_formula_is_a_cost_model() -> None:
    work = Work("aten.mm.default", 1e9, 1e6)
    model = Analytic({"mm": work}, lambda of, case: MACHINE.time_s(of.flops, of.bytes_moved, case.threads))
    assert model.time_s("mm", Threads(4)) == MACHINE.time_s(1e9, 1e6, 4)
    assert work.intensity == 1000.0
    assert Work("view", 0.0, 0.0).intensity == 0.0
    with pytest.raises(SettingError, match="the work of 'conv' is not known"):
        model.time_s("conv", Threads(1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peak_flops_per_s": 0.0}, "peak_flops_per_s must be above 0"),
        ({"latency_s": -1.0}, "latency_s must be at least 0"),
        ({"cores": 0}, "cores must be above 0"),
        ({"bandwidth_cores": 9, "cores": 8}, "bandwidth_cores must be at least 1 and at most 8, got 9"),
    ],
)
def test_a_roof_has_to_be_somewhere(changed: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Roofline(**{"peak_flops_per_s": 1.0, "bandwidth_bytes_per_s": 1.0, **changed})  # type: ignore[arg-type]


def test_no_thread_takes_no_time_that_could_be_told() -> None:
    with pytest.raises(SettingError, match="threads must be at least 1, got 0"):
        MACHINE.time_s(1.0, 1.0, 0)
