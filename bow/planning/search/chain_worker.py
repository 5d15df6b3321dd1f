"""What a process of a search runs: `python -m bow.planning.search.chain_worker`, with its job on standard input."""

import os
import pickle
import signal
import sys
from types import FrameType
from typing import Any, BinaryIO

from bow.planning.search.chains import run_chains


def main() -> None:
    """Walk, and write how it goes, and then what was found, to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; who started this one tells it to end
    ending = _Ending()
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anybody prints is no message
        sys.path[:] = pickle.load(sys.stdin.buffer)
        problem, starts, settings = pickle.load(sys.stdin.buffer)

        def told(number: int, proposals: int, batch_ns: float) -> bool:
            _send(out, (number, proposals, batch_ns))
            return not ending.is_near

        for chain in run_chains(problem, starts, settings, told):
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
