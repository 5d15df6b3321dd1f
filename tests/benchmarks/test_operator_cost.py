from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import operator_cost
from benchmarks.operator_cost import (
    CALLERS,
    CALLS,
    RUNTIME,
    by_priority,
    from_python,
    handed_over,
    in_order,
    measure_operator_costs,
    probes,
)


@pytest.mark.parametrize("probe", [from_python, in_order, by_priority, handed_over])
def test_the_cost_is_the_time_of_one_call(probe: Callable[..., float]) -> None:
    ticks = iter([1.0, 3.0])
    assert probe(lambda: next(ticks)) == 2.0 / CALLS


def test_every_probe_is_measured_several_times_after_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([99.0, 3.0, 1.0, 2.0])
    monkeypatch.setattr(operator_cost, "REPEATS", 3)
    monkeypatch.setattr(operator_cost, "probes", lambda: {"python": lambda: next(answers)})
    (spread,) = measure_operator_costs().values()
    assert (spread.median, spread.low, spread.high, spread.n) == (2.0, 1.0, 3.0, 3)


def test_every_probe_has_a_name_for_people() -> None:
    assert RUNTIME in probes()
    assert probes().keys() <= CALLERS.keys()
