"""Learners come and go for some seconds; `make soak` does it for minutes."""

import pytest

from tests.soak import VARIANTS, soak

SECONDS = 8
SLACK_MIB = 16


@pytest.mark.parametrize("variant", ["graph", "streams"])
def test_nothing_grows_and_nothing_is_left_where_learners_come_and_go(variant: str) -> None:
    soaked = soak(SECONDS, **VARIANTS[variant])
    assert soaked.changes > 20
    assert soaked.end.memory_mib < soaked.warm.memory_mib + SLACK_MIB
    assert soaked.closed.threads == soaked.before.threads
    assert soaked.closed.files <= soaked.warm.files
