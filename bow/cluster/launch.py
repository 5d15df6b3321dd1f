"""Start the other processes of a training, and end them with it."""

import contextlib
import os
import pickle
import resource
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

from bow.cluster.heartbeat import MISSED_S, advice
from bow.errors import BowError, ClusterError, SettingError, reason

POLL_S = 0.2
GRACE_S = 5.0  # seconds for a process to terminate before it is killed
HOST = "127.0.0.1"
JOB = "job"

# Files and connections of a training, and of each process: its stdin, two to the store, one of Gloo.
FILES, FILES_OF_PROCESS = 32, 4
CONSEQUENCE = 3  # exit status of a process that ended because another one had


class WorkerJob:
    """A function that worker processes call, pickled into a temporary folder."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bow-")
        self.path = Path(self._folder.name)
        try:
            with (self.path / JOB).open("wb") as file:
                pickle.dump(sys.path, file)
                cloudpickle.dump(function, file)  # by value: definitions of the main script or a notebook too
        except Exception as error:
            self._folder.cleanup()
            raise SettingError(
                f"the model, data or step cannot be pickled for the worker processes ({reason(error)}); remove objects "
                "with open files, locks or connections, or start the processes with torchrun"
            ) from error

    def delivered(self) -> None:
        """Delete the pickle, which may be large, once all workers have read it."""
        (self.path / JOB).unlink(missing_ok=True)

    def discard(self) -> None:
        self._folder.cleanup()


class Workers:
    """The worker processes that rank 0 starts on its machine: fresh interpreters with its import path."""

    def __init__(self, size: int, job: WorkerJob, remedy: str = "") -> None:
        try:
            _check_open_files(size)
        except SettingError:
            job.discard()
            raise
        self._remedy = remedy
        self.on_failure: Callable[[], None] | None = None
        self.job = job
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failure: str | None = None
        self._over = threading.Event()
        self.store = TCPStore(HOST, 0, size, is_master=True, wait_for_workers=False)
        ranks = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": HOST, "MASTER_PORT": self.store.port}
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self._watching = threading.Thread(target=self._watch, name="bow workers", daemon=True)
        self._watching.start()
        try:
            for rank in range(1, size):
                own = {**ranks, "RANK": rank, "LOCAL_RANK": rank}
                environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
                command = [sys.executable, *flags, "-m", "bow.cluster.worker", str(job.path), str(rank)]
                # Its stdin is closed when this process ends, for whatever reason.
                self._processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE))
        except BaseException as error:
            self.close(in_peace=False)
            if not isinstance(error, OSError):
                raise
            raise SettingError(f"process {rank} of {size} cannot be started ({reason(error)}); use fewer") from error

    def connect(self) -> Store:
        return TCPStore(HOST, self.store.port, is_master=False)

    def kill(self, rank: int, why: str) -> None:
        """Kill a process that hangs: collectives that wait for it fail when its connection closes."""
        self._failure = self._failure or why
        with contextlib.suppress(ProcessLookupError):
            self._processes[rank - 1].send_signal(signal.SIGKILL)

    def failure(self, within_s: float = 0.0) -> str | None:
        """Return why a worker ended early, waiting up to `within_s` for that; None if none did."""
        give_up = time.monotonic() + within_s
        while self._failure is None and time.monotonic() < give_up:
            time.sleep(POLL_S / 2)
        return self._failure

    def close(self, in_peace: bool) -> None:
        self._over.set()
        if not in_peace:
            for process in self._processes:
                process.terminate()
        give_up = time.monotonic() + GRACE_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, give_up - time.monotonic()))
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._watching.join()
        self.job.discard()

    def _watch(self) -> None:
        """Find the worker that ended first, the cause of the others' end."""
        since: float | None = None
        while not self._over.wait(POLL_S):
            ended = {
                rank: status for rank, each in enumerate(self._processes, 1) if (status := each.poll()) is not None
            }
            told = [rank for rank in range(1, len(self._processes) + 1) if self._message(rank).exists()]
            causes = told or [rank for rank, status in ended.items() if status != CONSEQUENCE]
            if ended and since is None:
                since = time.monotonic()
            if self._failure is None and (causes or (since is not None and time.monotonic() - since > GRACE_S)):
                rank = min(causes or ended)
                self._failure = self._explain(rank, ended.get(rank, 0))
            if self._failure is not None and ended and self.on_failure is not None:
                on_failure, self.on_failure = self.on_failure, None
                with contextlib.suppress(RuntimeError):  # all processes are already leaving
                    on_failure()

    def _message(self, rank: int) -> Path:
        return self.job.path / f"failure_{rank}"

    def _explain(self, rank: int, status: int) -> str:
        if self._message(rank).exists():
            return f"rank {rank}: {self._message(rank).read_text(encoding='utf-8')}"
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return f"rank {rank} ended with {how}; {advice(self._remedy)}"


def _check_open_files(size: int) -> None:
    """Refuse too many processes for the limit of open files, before torch fails on it."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    folder = Path("/dev/fd")
    needed = (len(list(folder.iterdir())) if folder.is_dir() else 0) + FILES + FILES_OF_PROCESS * size
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        raise SettingError(
            f"{size} processes need about {needed} open files and connections, and {allowed} are allowed; allow more "
            f"(ulimit -n {needed}), or use fewer devices"
        )


def failed(workers: Workers, error: BowError) -> BowError:
    """Return the error of the worker that caused this one, if it left a message; else this one."""
    why = workers.failure(within_s=MISSED_S)  # on a busy machine it takes long to leave one
    if why is None:
        return error
    cause = ClusterError(why)
    for note in getattr(error, "__notes__", ()):
        cause.add_note(note)
    return cause
