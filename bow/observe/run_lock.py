"""The lock of a run directory: one training at a time, and no longer than its process lives."""

import contextlib
import fcntl
import functools
import os
import socket
import time
import warnings
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import Any

from bow.errors import RunDirectoryError, disk_reason

NAME = ".lock"

_held: set[int] = set()


class RunLock(contextlib.AbstractContextManager["RunLock"]):
    """Keeps other trainings out of a run directory; `bow report` and other readers do not ask for it.

    It is an advisory lock (`flock`) on a file of the directory, which the system lets go of when the process ends,
    however it ends. Children of a fork do not hold it: workers of a `DataLoader` may outlive a training that is killed.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._path = Path()

    def take(self, directory: Path, patience_s: float = 0.0) -> None:
        """Lock a directory that exists; nothing happens where this lock is taken already.

        Warns:
            UserWarning: the file system has no locks.
        """
        if self._descriptor is not None:
            return
        _let_go_in_children()
        path, until = directory / NAME, time.monotonic() + patience_s
        while (descriptor := _locked(path)) is None:
            if time.monotonic() >= until:
                raise RunDirectoryError(
                    f"run_dir {directory} is in use by another training{_holder(path)}; wait until it has ended, or "
                    "name another run_dir"
                )
            time.sleep(0.1)
        _held.add(descriptor)
        self._descriptor, self._path = descriptor, path
        with contextlib.suppress(OSError):  # on a full disk nobody is told the number
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {socket.gethostname()}".encode())

    def remove(self) -> None:
        """Delete the file, where it is still the one that is locked."""
        with contextlib.suppress(OSError):
            if self._descriptor in _held and _is_at(self._path, self._descriptor):
                self._path.unlink()

    def __exit__(self, *_: Any) -> None:
        """Let others in."""
        self.remove()
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None


def _locked(path: Path) -> int | None:
    """A descriptor of the locked file; None: another process has it."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise RunDirectoryError(
                f"run_dir {path.parent} cannot be written ({disk_reason(error)}); name a run_dir that can be"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (EAGAIN, EACCES):
                os.close(descriptor)
                return None
            warnings.warn(
                f"run_dir {path.parent} cannot be locked ({disk_reason(error)}); start no second training there",
                stacklevel=4,
            )
            return descriptor
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # the training that had it has ended meanwhile, and deleted it


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """The process that has the lock, in brackets; empty where that is unknown."""
    try:
        number, host = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return ""
    return f" (process {number})" if host == socket.gethostname() else f" (process {number} on {host})"


@functools.cache
def _let_go_in_children() -> None:
    def let_go() -> None:
        for descriptor in _held:
            os.close(descriptor)  # the parent's lock stays
        _held.clear()

    os.register_at_fork(after_in_child=let_go)
