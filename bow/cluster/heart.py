"""Who trains together hears of each other: a process that has gone or hangs is noticed, however long it may compute."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]

from bow.files import Expendable

BEAT_S = 2.0
"""Seconds between two beats."""

MISSED_S = 30.0
"""Seconds without a beat after which a process hangs, or its machine has gone."""

EXIT_STATUS = 75
"""Of a process that ends since another one hangs: it may be started again (EX_TEMPFAIL of sysexits.h)."""


class Beats:
    """When each of some counters last changed; pure.

    Args:
        names: of the counters.
        missed_s: seconds without a change, or without a first beat, after which one has stopped.
        now: seconds, on a clock that only goes up.

    Example:
        >>> beats = Beats([0, 1], missed_s=30, now=0)
        >>> beats.hear({0: 1, 1: 1}, now=10)
        >>> beats.hear({0: 2, 1: 1}, now=35)
        >>> beats.stopped(now=41)
        1
    """

    def __init__(self, names: Sequence[int], missed_s: float, now: float) -> None:
        self._missed_s = missed_s
        self._last = dict.fromkeys(names, (-1, now))

    def hear(self, counters: dict[int, int], now: float) -> None:
        """Take in what the counters are by now."""
        for name, count in counters.items():
            if count != self._last[name][0]:
                self._last[name] = count, now

    def stopped(self, now: float) -> int | None:
        """The first one that has stopped; None where none has."""
        late = (name for name, (_, since) in self._last.items() if now - since > self._missed_s)
        return next(late, None)


class Heart:
    """A thread that beats for this process and listens for others, once all have met.

    Rank 0 listens for all, and they for it: that is as many messages as there are processes, and enough, since all end
    when rank 0 does. A process that is stopped, or whose machine has gone, is noticed within `MISSED_S` and a beat.

    Args:
        connect: opens a connection to where all meet, for this thread alone.
        rank: of this process.
        size: how many there are.
        on_silence: called with the rank of a process that was not heard of and a sentence on it, from this thread;
            None: the sentence on standard error, and the end of this process, since nothing else gets a thread out of a
            collective.
    """

    def __init__(
        self,
        connect: Callable[[], Store],
        rank: int,
        size: int,
        on_silence: Callable[[int, str], None] | None = None,
    ) -> None:
        self._connect = connect
        self._rank = rank
        self._others = [other for other in range(size) if other != rank] if rank == 0 else [0]
        self._on_silence = on_silence or self._end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bow heart", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Heart":
        return self

    def __exit__(self, *exception: object) -> None:
        """Beat no more; the thread ends by itself."""
        self._stop.set()

    def _run(self) -> None:
        beats = Beats(self._others, MISSED_S, time.monotonic())
        count, last = 0, time.monotonic()
        store: Store | None = None
        while not self._stop.wait(BEAT_S if count else 0):
            count += 1
            if (
                time.monotonic() - last > BEAT_S + MISSED_S / 2
            ):  # this process was stopped, and knows nothing of the others
                beats = Beats(self._others, MISSED_S, time.monotonic())
            with contextlib.suppress(RuntimeError):  # where all meet does not answer: then nobody is heard
                if store is None:
                    store = self._connect()
                    store.set_timeout(timedelta(seconds=BEAT_S))
                store.set(_key(self._rank), str(count))
                keys = {other: _key(other) for other in self._others}
                there = {other: key for other, key in keys.items() if store.check([key])}
                beats.hear({other: int(store.get(key)) for other, key in there.items()}, time.monotonic())
            silent = beats.stopped(time.monotonic())
            if silent is not None and not self._stop.is_set():
                why = (
                    f"rank {silent} was not heard of for {MISSED_S:.0f} s: it hangs, or its machine cannot be reached; "
                    'look at its output, and go on with resume="auto"'
                )
                self._on_silence(silent, why)
                return
            last = time.monotonic()

    def _end(self, rank: int, why: str) -> None:
        print(f"rank {self._rank}: {why}", file=Expendable(sys.stderr), flush=True)
        os._exit(EXIT_STATUS)


def _key(rank: int) -> str:
    return f"bow/heart/{rank}"
