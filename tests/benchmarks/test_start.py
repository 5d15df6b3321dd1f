"""What `python -m benchmarks start` times."""

from __future__ import annotations

import pytest

from benchmarks.start import missed


@pytest.mark.parametrize(("ratio", "second_s", "is_missed"), [(1.0, 0.4, False), (0.8, 0.4, True), (1.0, 0.6, True)])
def test_a_slow_rule_and_a_slow_second_start_miss_the_aim(ratio: float, second_s: float, is_missed: bool) -> None:
    cells = [{"ratio": {"median": ratio}}]
    assert missed({"cells": cells, "starts": [{"second": {"wall_s": {"median": second_s}}}]}) is is_missed
