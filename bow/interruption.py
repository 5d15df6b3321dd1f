"""Ctrl-C, SIGTERM, a closed terminal: what is at work ends in its own way; asked again, it ends at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
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


def end_as_asked(number: int, note: str | None) -> NoReturn:
    """Do behind the training what a signal asks for: raise `KeyboardInterrupt`, or end the process."""
    error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    if note is not None:
        error.add_note(note)
    raise error
