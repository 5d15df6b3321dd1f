"""Starting the other processes of a training, and seeing to it that they end with it."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from bow.errors import ClusterError, SettingError, reason

POLL_S = 0.2

GRACE_S = 5.0
"""Seconds in which a process that is asked to end should do so, before it is ended."""

HOST = "127.0.0.1"


class Workers:
    """Processes of this machine that this one, which is rank 0, trains with.

    Each is a fresh interpreter with the import path of this one, and calls a function. What is defined in the main
    script or a notebook is sent along, so that the script is not run again and needs no guard.

    Args:
        size: processes in all, this one among them.
        job: what each of them calls; anything that `cloudpickle` can send.

    Raises:
        SettingError: the job cannot be sent.
    """

    def __init__(self, size: int, job: Callable[[], Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bow-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failure: str | None = None
        self._over = threading.Event()
        folder = Path(self._folder.name)
        try:
            with (folder / "job").open("wb") as file:
                pickle.dump(sys.path, file)
                cloudpickle.dump(job, file)
        except Exception as error:
            self._folder.cleanup()
            raise SettingError(
                f"what is to be trained cannot be sent to other processes ({reason(error)}); leave out what holds open "
                "files, locks or connections, or start the processes with torchrun"
            ) from error
        self.store = TCPStore(HOST, 0, size, is_master=True, wait_for_workers=False)
        ranks = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": HOST, "MASTER_PORT": self.store.port}
        for rank in range(1, size):
            own = {**ranks, "RANK": rank, "LOCAL_RANK": rank}
            environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
            command = [sys.executable, "-m", "bow.cluster.worker", str(folder), str(rank)]
            # Its standard input ends when this process does, however that may come.
            self._processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE))
        self._watching = threading.Thread(target=self._watch, name="bow workers", daemon=True)
        self._watching.start()

    def connect(self) -> Store:
        """A further connection to where all meet."""
        return TCPStore(HOST, self.store.port, is_master=False)

    def kill(self, rank: int, why: str) -> None:
        """End a process that hangs; who waits for it then hears that its connection is closed."""
        self._failure = self._failure or why
        with contextlib.suppress(ProcessLookupError):
            self._processes[rank - 1].send_signal(signal.SIGKILL)

    def failure(self, within_s: float = GRACE_S) -> str | None:
        """Why one of them has ended before its time; None where none has within so many seconds."""
        give_up = time.monotonic() + within_s
        while self._failure is None and time.monotonic() < give_up:
            time.sleep(POLL_S / 2)
        return self._failure

    def close(self, in_peace: bool) -> None:
        """Wait for all to end.

        Args:
            in_peace: they end by themselves; else they are ended.
        """
        self._over.set()
        give_up = time.monotonic() + GRACE_S
        for process in self._processes:
            if not in_peace:
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, give_up - time.monotonic()))
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._watching.join()
        self._folder.cleanup()

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            for rank, process in enumerate(self._processes, 1):
                status = process.poll()
                if status not in (None, 0) and self._failure is None:
                    self._failure = self._explain(rank, status)

    def _explain(self, rank: int, status: int) -> str:
        message = Path(self._folder.name) / f"failure_{rank}"
        if message.exists():
            return f"rank {rank}: {message.read_text(encoding='utf-8')}"
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return f'rank {rank} ended with {how} in the middle of the training; go on with resume="auto"'


def failed(workers: Workers, error: ClusterError) -> ClusterError:
    """The same error, with what the process that caused it has said, if it has said something."""
    why = workers.failure()
    return error if why is None else ClusterError(why)
