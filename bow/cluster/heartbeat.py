"""Heartbeats: detect processes that ended or hang, however long a step computes."""

import contextlib
import functools
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

from bow.files import Expendable

BEAT_S = 2.0  # seconds between two beats
MISSED_S = 30.0  # seconds without a beat after which a process counts as hanging, or its machine as lost

PROCESSES = Path("/proc/self/ns/pid")

EXIT_STATUS = 75  # exit status after another process hangs: may be restarted (EX_TEMPFAIL of sysexits.h)


class Liveness:
    """Track which processes gave no sign of life for too long; pure: signs and times are passed in."""

    def __init__(self, names: Sequence[int], missed_s: float) -> None:
        self._missed_s = missed_s
        self._now = 0.0
        self._last: dict[int, tuple[object, float]] = dict.fromkeys(names, (None, 0.0))

    def update(self, signs: Mapping[int, object], after_s: float) -> None:
        """Process the current signs of life, `after_s` seconds after the last update."""
        self._now += min(after_s, self._missed_s / 3)  # bounded: a listener that was suspended could not listen
        for name, sign in signs.items():
            if sign != self._last[name][0]:
                self._last[name] = sign, self._now

    def stopped(self) -> int | None:
        late = (name for name, (_, since) in self._last.items() if self._now - since > self._missed_s)
        return next(late, None)


class Heartbeat(contextlib.AbstractContextManager["Heartbeat"]):
    """A thread that writes this process's heartbeat into the store and watches others', after the rendezvous."""

    def __init__(
        self,
        connect: Callable[[], Store],
        rank: int,
        size: int,
        remedy: str = "",
        on_silence: Callable[[int, str], None] | None = None,
    ) -> None:
        self._connect = connect
        self._rank = rank
        self._remedy = remedy
        # Rank 0 watches all, the others watch rank 0: that is enough, since all end when rank 0 does.
        self._others = [other for other in range(size) if other != rank] if rank == 0 else [0]
        self._on_silence = on_silence or self._end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bow heartbeat", daemon=True)
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()

    def _run(self) -> None:
        liveness = Liveness(self._others, MISSED_S)
        count, last = 0, time.monotonic()
        store: Store | None = None
        while not self._stop.wait(BEAT_S if count else 0):
            count += 1
            signs = {}
            try:
                if store is None:
                    store = self._connect()
                    store.set_timeout(timedelta(seconds=BEAT_S))
                store.set(_key(self._rank), f"{count} {place()} {os.getpid()}")
                keys = {other: _key(other) for other in self._others}
                signs = {other: _sign(store.get(key).decode()) for other, key in keys.items() if store.check([key])}
            except RuntimeError:  # no answer in time; a late one would be read as the answer to the next request
                store = None
            now = time.monotonic()
            liveness.update(signs, now - last)
            last = now
            silent = liveness.stopped()
            if silent is not None and not self._stop.is_set():
                why = (
                    f"rank {silent} sent no heartbeat for {MISSED_S:.0f} s: it hangs, or its machine is unreachable; "
                    f"{advice(self._remedy)}"
                )
                self._on_silence(silent, why)
                return

    def _end(self, rank: int, why: str) -> None:
        print(f"rank {self._rank}: {why}", file=Expendable(sys.stderr), flush=True)
        os._exit(EXIT_STATUS)


def advice(remedy: str) -> str:
    return "check its output" + (f", and {remedy}" if remedy else "")


def _sign(beat: str) -> object:
    """Return a value that changes while a process lives: its beat and, on this machine, its activity."""
    _, where, process = beat.split()
    return beat, _activity(int(process)) if where == place() else None


def _activity(process: int) -> object:
    """Return a value that changes while a process computes or waits for a core or disk; None if unknown."""
    fields = process_status(process)
    if fields is None:
        return None
    return object() if fields[0] in "RD" else fields[11:13]  # CPU time of all its threads


def process_status(process: int) -> list[str] | None:
    """Return what Linux tells of a process, its state first; None if it tells nothing, as of one that has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None


@functools.cache
def place() -> str:
    """Return the scope in which process ids are unique: this boot of this machine, and this container."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() + str(PROCESSES.readlink())
    return uuid.uuid4().hex


def _key(rank: int) -> str:
    return f"bow/heartbeat/{rank}"
