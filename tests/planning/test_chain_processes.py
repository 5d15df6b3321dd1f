"""Processes of a search."""

from __future__ import annotations

from typing import Any

import pytest

from bow.planning.search import chains
from bow.planning.search.chains import Tally, run_in_processes


class Worker:
    """A process that does not end when it is asked to."""

    made: list[Worker] = []  # noqa: RUF012 - filled by a test

    def __init__(self, *_: Any) -> None:
        self.asked, self.is_ended = 0, False
        self.made.append(self)

    def begin(self, *_: Any) -> None:
        pass

    def send(self, message: Any) -> None:
        assert message is None
        self.asked += 1

    def end(self) -> int:
        self.is_ended = True
        return 0


class Messages:
    """What has come: interruptions are raised."""

    def __init__(self) -> None:
        self.coming: list[Any] = []

    def get(self) -> Any:
        message = self.coming.pop(0)
        if message is KeyboardInterrupt:
            raise message
        return message


@pytest.mark.parametrize(
    "coming",
    [
        pytest.param([KeyboardInterrupt, KeyboardInterrupt], id="twice"),
        pytest.param([(0, (0, 1, 1.0)), (0, (0, 2, 1.0)), KeyboardInterrupt], id="behind a progress that says so"),
    ],
)
def test_who_presses_ctrl_c_again_does_not_wait(coming: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    messages = Messages()
    messages.coming = coming
    monkeypatch.setattr(chains, "SearchProcess", Worker)
    monkeypatch.setattr(chains.queue, "Queue", lambda: messages)
    monkeypatch.setattr(Worker, "made", [])
    nothing: Any = None
    with pytest.raises(KeyboardInterrupt):
        run_in_processes(nothing, [[], []], nothing, Tally(lambda *_: False))
    assert not messages.coming
    assert [(worker.asked, worker.is_ended) for worker in Worker.made] == [(1, True)] * 2
