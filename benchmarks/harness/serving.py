"""The process of a `Host`: `python -m benchmarks.harness.serving ADDRESS PREPARE`."""

import os
import pickle
import sys
import threading
import time
import traceback
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from benchmarks.harness.bare import stand_in
from benchmarks.harness.processes import first_words


def main(address: Path, prepared: bytes) -> None:
    """Prepare, and then answer one caller after another until the parent ends this process."""
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
    """Whether a call went well, and what it returned or why it did not."""
    try:
        function, arguments = pickle.loads(message)
        return True, function(*arguments)
    except Exception as error:
        traceback.print_exc()
        return False, first_words(error)


def end_with(parent: int) -> None:
    """End when the process that has started this one has."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, name="end with the parent", daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]))
