"""How devices talk to each other."""

from __future__ import annotations

import pytest

from bow.errors import ClusterError
from bow.tiles.team import wait_for


class Nested:
    """What waits for messages itself, one of which has failed."""

    def wait(self) -> None:
        wait_for([Failed()])


class Failed:
    def wait(self) -> None:
        raise RuntimeError("connection closed")


def test_a_message_that_fails_is_told_once() -> None:
    with pytest.raises(ClusterError) as caught:
        wait_for([Nested()])
    assert str(caught.value).count("another process of the strategy has ended") == 1
