"""Processes of a search."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from bow.errors import ScheduleError
from bow.planning.search import chains
from bow.planning.search.chains import ProgressAggregator, run_in_processes


class Worker:
    """A process that does not end when it is asked to."""

    made: list[Worker] = []  # noqa: RUF012 - filled by a test
    status = 0

    def __init__(self, *_: Any) -> None:
        self.asked, self.is_ended = 0, False
        self.made.append(self)

    def begin(self, *_: Any) -> None:
        pass

    def send(self, message: Any) -> None:
        assert message is None
        self.asked += 1

    def end(self, within_s: float | None = 0.0) -> int:
        self.is_ended = True
        return self.status


class Messages:
    """What has come: interruptions are raised."""

    def __init__(self) -> None:
        self.coming: list[Any] = []

    def get(self) -> Any:
        message = self.coming.pop(0)
        if message is KeyboardInterrupt:
            raise message
        return message


NOTHING: Any = None


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Messages:
    made = Messages()
    monkeypatch.setattr(chains, "SearchProcess", Worker)
    monkeypatch.setattr(chains.queue, "Queue", lambda: made)
    monkeypatch.setattr(Worker, "made", [])
    return made


@pytest.mark.parametrize(
    "coming",
    [
        pytest.param([KeyboardInterrupt, KeyboardInterrupt], id="twice"),
        pytest.param([(0, (0, 1, 1.0)), (0, (0, 2, 1.0)), KeyboardInterrupt], id="behind a progress that says so"),
    ],
)
def test_who_presses_ctrl_c_again_does_not_wait(coming: list[Any], messages: Messages) -> None:
    messages.coming = coming
    with pytest.raises(KeyboardInterrupt):
        run_in_processes(NOTHING, [[], []], NOTHING, ProgressAggregator(lambda *_: False))
    assert not messages.coming
    assert [(worker.asked, worker.is_ended) for worker in Worker.made] == [(1, True)] * 2


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_status_counts_unless_the_process_was_asked_to_end(
    goes_on: bool, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "status", 130)  # Ctrl-C reaches a process that has no handler yet
    messages.coming = [(0, (0, 1, 1.0)), (0, None)]
    with pytest.raises(ScheduleError, match="ended with status 130") if goes_on else contextlib.nullcontext():
        assert run_in_processes(NOTHING, [[]], NOTHING, ProgressAggregator(lambda *_: goes_on)) == []
