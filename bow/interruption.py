"""Ctrl-C, SIGTERM, a closed terminal: what is at work ends in its own way; asked again, it ends at once."""

import _signal  # type: ignore[import-not-found]  # what `signal` wraps, at a tenth of the time
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Remembers the first signal; behind it, signals do again what they did before."""

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self._signals = signals
        self.signal: int | None = None  # the signal that has come; None: none has
        self._before: dict[int, signal._HANDLER] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Take signals down; only the main thread is given any, elsewhere nothing happens here."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in self._signals:
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None):  # rank 0 hears of Ctrl-C for all; None: not Python's to change
                self._before[number] = before
                signal.signal(number, self._note)
        try:
            yield
        finally:
            self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if number != signal.SIGHUP:  # a terminal that closes sends it more than once
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


class Uninterrupted:
    """Around a round: Ctrl-C ends one that has written nothing, and waits until another one is counted."""

    __slots__ = ("_before", "_came", "_has_written")

    def __init__(self, has_written: Callable[[], bool] = lambda: True) -> None:
        self._has_written = has_written
        self._came: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        self._before = _signal.getsignal(signal.SIGINT)
        if callable(self._before) and threading.current_thread() is threading.main_thread():  # which alone is told
            _signal.signal(signal.SIGINT, self._take)

    def __exit__(self, *error: object) -> None:
        if _signal.getsignal(signal.SIGINT) == self._take:  # and not what whoever was told has put in its place
            _signal.signal(signal.SIGINT, self._before)
        if self._came is not None:
            self._before(*self._came)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._has_written():
            self._came = number, frame
        else:
            self._before(number, frame)


def end_as_asked(number: int, note: str | None) -> NoReturn:
    """Do behind the training what a signal asks for: raise `KeyboardInterrupt`, or end the process."""
    error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    if note is not None:
        error.add_note(note)
    raise error
