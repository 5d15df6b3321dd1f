"""Processes that walk at the same time, and report to the one that started them."""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, BinaryIO, TypeAlias

import cloudpickle

from bow.errors import ScheduleError
from bow.planning.search.chains import Chain, Tally, WalkStart, run_chains
from bow.planning.search.problem import Problem
from bow.planning.search.search_settings import SearchSettings

Report: TypeAlias = tuple[int, int, float]  # the number of a start, proposals, the best time of a batch in nanoseconds


def run_in_processes(
    problem: Problem, shares: Sequence[Sequence[WalkStart]], settings: SearchSettings, tally: Tally
) -> list[Chain]:
    """Walk from several starts, each process from its share of them.

    Every process is a fresh interpreter with the import path of this one, so that the main script is not run again.
    Ctrl-C, or a progress that returns False, ends all walks; they still send what they found. Ctrl-C after that ends
    the processes at once.
    """
    messages: queue.Queue[tuple[int, Any]] = queue.Queue()
    workers = [_SearchProcess(number, problem, share, settings, messages) for number, share in enumerate(shares)]
    chains: list[Chain] = []
    try:
        for worker in workers:
            worker.begin()
        running, goes_on = set(range(len(workers))), True
        while running:
            was_asked = not goes_on
            try:
                number, message = messages.get()
                if message is None:
                    running.discard(number)
                elif isinstance(message, Chain):
                    chains.append(message)
                else:
                    goes_on = tally.report(*message) and goes_on
            except KeyboardInterrupt:
                if was_asked:
                    raise
                goes_on = False
            if not goes_on and not was_asked:
                for worker in workers:
                    worker.end()
    finally:
        for worker in workers:
            worker.close()
    failed = next((worker for worker in workers if worker.status), None)
    if failed is not None:
        raise ScheduleError(f"a process of the search ended with status {failed.status}; see what it printed")
    return sorted(chains, key=lambda chain: chain.start.number)


class _SearchProcess:
    """A process and the thread that listens to it."""

    def __init__(
        self,
        number: int,
        problem: Problem,
        starts: Sequence[WalkStart],
        settings: SearchSettings,
        messages: "queue.Queue[tuple[int, Any]]",
    ) -> None:
        self._job = pickle.dumps(sys.path) + cloudpickle.dumps((problem, starts, settings))
        self._number, self._messages = number, messages
        command = [sys.executable, "-m", "bow.planning.search.chain_processes"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._listening = threading.Thread(target=self._listen, name="bow search", daemon=True)
        self._is_asked = False
        self.status = 0

    def begin(self) -> None:
        self._listening.start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: its status says so
            self._process.stdin.write(self._job)
            self._process.stdin.flush()

    def end(self) -> None:
        """Ask it to send what it has found so far."""
        self._is_asked = True
        if self._process.poll() is None:
            self._process.terminate()

    def close(self) -> None:
        """Wait for it; where it was not heard to its end, end it."""
        if self._listening.is_alive():
            self._process.kill()
        self._listening.join()
        status = self._process.wait()
        self.status = 0 if self._is_asked else status  # asked very early, it has no handler yet
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # of what it has not read
                    stream.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                self._messages.put((self._number, pickle.load(self._process.stdout)))
        except (EOFError, pickle.UnpicklingError):  # it has ended, or was ended in the middle of a message
            self._messages.put((self._number, None))


def main() -> None:
    """Walk, and write how it goes, and then what was found, to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one by SIGTERM
    ending = _Ending()
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed is no message
        sys.path[:] = pickle.load(sys.stdin.buffer)
        problem, starts, settings = pickle.load(sys.stdin.buffer)

        def report(number: int, proposals: int, batch_ns: float) -> bool:
            _send(out, (number, proposals, batch_ns))
            return not ending.is_near

        for chain in run_chains(problem, starts, settings, report):
            _send(out, chain)


class _Ending:
    """Whether this process was asked to end."""

    def __init__(self) -> None:
        self.is_near = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.is_near = True


def _send(out: BinaryIO, message: Any) -> None:
    pickle.dump(message, out)
    out.flush()


if __name__ == "__main__":
    main()
