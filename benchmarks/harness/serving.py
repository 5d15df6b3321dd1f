"""The process of a `Host`: `python -m benchmarks.harness.serving ADDRESS PREPARE`."""

import ctypes
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from benchmarks.harness.bare import stand_in
from benchmarks.harness.processes import first_words

SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2): sent when the thread that started this process ends


def main(address: Path, prepared: bytes) -> None:
    """Prepare, and then serve one client after another until the parent kills this process."""
    end_with(os.getppid())
    stand_in()
    try:
        first = pickle.loads(prepared)
        if first is not None:
            first[0](*first[1])
    except BaseException as error:
        traceback.print_exc()
        address.with_suffix(".failed").write_text(first_words(error), encoding="utf-8")
        raise SystemExit(1) from error
    with Listener(str(address), family="AF_UNIX") as listener:
        while True:
            with listener.accept() as connection:
                try:
                    while True:
                        connection.send_bytes(pickle.dumps(answer(connection.recv_bytes())))
                except (EOFError, OSError):
                    continue


def answer(message: bytes) -> tuple[bool, Any]:
    """Execute a call: return whether it succeeded, and its result or error."""
    try:
        function, arguments = pickle.loads(message)
        return True, function(*arguments)
    except Exception as error:
        traceback.print_exc()
        return False, first_words(error)


def end_with(parent: int) -> None:
    """End together with the parent process, even while suspended; Linux only."""
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended in between
        os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]))
