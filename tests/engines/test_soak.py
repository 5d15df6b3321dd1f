"""Learners come and go for a moment; `make soak` does it for minutes."""

import pytest

from tests.soak import VARIANTS, check, soak

SECONDS = 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("variant", ["graph", "streams"])
def test_nothing_grows_and_nothing_is_left_where_learners_come_and_go(variant: str) -> None:
    check(soak(SECONDS, **VARIANTS[variant]))
