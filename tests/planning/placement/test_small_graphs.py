"""The small form of `python -m tests.planning.placement.small_graphs`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.planning.placement.small_graphs import compared, shows_it
from tests.planning.placement.small_steps import random_step


@pytest.mark.sample(2)
@pytest.mark.parametrize(("devices", "is_limited"), [(2, True), (3, False)])
def test_what_is_learned_comes_near_the_optimum_of_a_small_step(devices: int, is_limited: bool) -> None:
    row = compared(devices, is_limited, seed=0, samples=800, groups=11 if devices == 2 else 7)
    assert row.learned is not None
    assert 1.0 <= row.learned <= 1.02
    assert row.random is not None
    assert row.learned <= row.random


def test_the_optimum_is_the_least_time_of_all_placements() -> None:
    step = random_step(5, 3, is_limited=True, groups=5)
    every = step.times_ns(np.array(list(itertools.product(range(3), repeat=5))))
    assert step.optimum_ns() == every[every >= 0].min()
    assert (every < 0).any()


def test_a_table_shows_it_if_nine_of_ten_are_near_and_none_is_behind_random_search() -> None:
    near = {"learned": 1.01, "random": 1.05}
    assert shows_it([near] * 9 + [{"learned": 1.2, "random": 1.3}])
    assert not shows_it([near] * 8 + [{"learned": 1.2, "random": 1.3}] * 2)
    assert not shows_it([near] * 9 + [{"learned": 1.01, "random": 1.005}])
    assert not shows_it([near] * 9 + [{"learned": None, "random": None}] * 2)
