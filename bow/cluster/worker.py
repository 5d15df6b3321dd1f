"""A worker process started by `Workers`: `python -m bow.cluster.worker FOLDER RANK`."""

import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path

from bow.cluster.launch import CONSEQUENCE, JOB
from bow.errors import BowError, ClusterError, reason
from bow.files import write_whole

FAILED = 2


def main(folder: Path, rank: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; rank 0 decides
    threading.Thread(target=_end_with_rank_0, name="bow rank 0", daemon=True).start()
    warnings.simplefilter("ignore")  # rank 0 shows the same warnings
    try:
        with (folder / JOB).open("rb") as file:
            sys.path[:] = pickle.load(file)
            pickle.load(file)()
    except ClusterError:
        return CONSEQUENCE
    except Exception as error:
        message = str(error) if isinstance(error, BowError) else f"{type(error).__name__}: {reason(error)}"
        write_whole(folder / f"failure_{rank}", message)
        if not isinstance(error, BowError):
            traceback.print_exc()
        return FAILED
    except (KeyboardInterrupt, SystemExit):
        pass  # terminated from outside, like rank 0
    return 0


def _end_with_rank_0() -> None:
    """End when rank 0 has ended, also between collectives."""
    os.read(sys.stdin.fileno(), 1)  # unbuffered: the lock of Python's file would be held when this process ends
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
