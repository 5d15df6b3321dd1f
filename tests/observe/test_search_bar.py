"""How Ctrl-C ends a search that shows a bar."""

from __future__ import annotations

import io
import signal
import threading

import pytest
from rich.console import Console

from bow.observe import search_bar
from bow.observe.search_bar import watched


def test_ctrl_c_ends_the_search_and_pressed_again_interrupts_what_does_not_look() -> None:
    before = signal.getsignal(signal.SIGINT)
    with watched(1.0, Console(file=io.StringIO())) as tell:
        assert tell(0.1, 1, 1e6)
        signal.raise_signal(signal.SIGINT)
        assert not tell(0.2, 2, 1e6)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_python_does_not_know_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    known = signal.getsignal
    before = known(signal.SIGINT)
    monkeypatch.setattr(search_bar.signal, "getsignal", lambda number: None)
    with watched(None, Console(file=io.StringIO())) as tell:
        assert known(signal.SIGINT) is before
        assert tell(0.1, 1, 1e6)
    assert known(signal.SIGINT) is before


def test_another_thread_than_the_main_one_leaves_handlers_alone() -> None:
    before, told = signal.getsignal(signal.SIGINT), list[bool]()

    def search() -> None:
        with watched(None, Console(file=io.StringIO())) as tell:
            told.append(signal.getsignal(signal.SIGINT) is before and tell(0.1, 1, 1e6))

    thread = threading.Thread(target=search)
    thread.start()
    thread.join(10)
    assert told == [True]
