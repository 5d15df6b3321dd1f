"""Ctrl-C, SIGTERM, a closed terminal: the first signal ends work in an orderly way, the second at once."""

import _signal  # type: ignore[import-not-found]  # the module that `signal` wraps, at a tenth of the time
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import ClassVar, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Records the first signal; afterwards, signals have their previous handlers again."""

    pending: ClassVar[bool] = False  # whether one has come to work under way, which a compiler may have died of, too

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self._signals = signals
        self.signal: int | None = None  # the signal received, if any
        self._before: dict[int, signal._HANDLER] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record signals; no effect outside the main thread, which alone receives them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in self._signals:
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None):  # SIG_IGN: rank 0 handles it for all; None: not Python's
                self._before[number] = before
                signal.signal(number, self._note)
        try:
            yield
        finally:
            Interruption.pending = False
            self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        Interruption.pending = True
        if number != signal.SIGHUP:  # a closing terminal sends it more than once
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


class Uninterrupted:
    """Around a round: Ctrl-C ends a round that has written nothing, else waits until the round is counted."""

    __slots__ = ("_before", "_came", "_has_written")

    def __init__(self, has_written: Callable[[], bool] = lambda: True) -> None:
        self._has_written = has_written
        self._came: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        self._before = _signal.getsignal(signal.SIGINT)
        if callable(self._before) and threading.current_thread() is threading.main_thread():  # only it gets signals
            _signal.signal(signal.SIGINT, self._take)

    def __exit__(self, *error: object) -> None:
        if _signal.getsignal(signal.SIGINT) == self._take:  # not if the previous handler has replaced it
            _signal.signal(signal.SIGINT, self._before)
        if self._came is not None:
            self._before(*self._came)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._has_written():
            self._came = number, frame
        else:
            self._before(number, frame)


def end_as_asked(number: int, note: str | None) -> NoReturn:
    """End after the training as the signal asks: raise `KeyboardInterrupt`, or `SystemExit`."""
    error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    if note is not None:
        error.add_note(note)
    raise error
