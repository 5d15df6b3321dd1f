"""The directory of a run, and its lock."""

import contextlib
import datetime
import fcntl
import functools
import itertools
import os
import re
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import Any

import yaml

from bow.errors import BowError, RunDirectoryError, disk_reason, reason
from bow.observe.records import plain

LOCK = ".lock"

_held: set[int] = set()


class RunLock(contextlib.AbstractContextManager["RunLock"]):
    """Keeps other trainings out of a run directory, by `flock`: the system lets go of it however the process ends.

    Children of a fork do not hold it: workers of a `DataLoader` may outlive a training that is killed.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._path = Path()

    def take(self, directory: Path, patience_s: float = 0.0) -> None:
        """Lock a directory that exists; nothing happens where this lock is taken already."""
        if self._descriptor is not None:
            return
        _let_go_in_children()
        path, until = directory / LOCK, time.monotonic() + patience_s
        while (descriptor := _locked(path)) is None:
            if time.monotonic() >= until:
                raise RunDirectoryError(
                    f"run directory {directory} is in use by another training{_holder(path)}; wait until it has ended, "
                    "or name another one"
                )
            time.sleep(0.1)
        _held.add(descriptor)
        self._descriptor, self._path = descriptor, path
        with contextlib.suppress(OSError):  # on a full disk the number is left out
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {socket.gethostname()}".encode())

    def remove(self) -> None:
        """Delete the file, where it is still the one that is locked."""
        with contextlib.suppress(OSError):
            if self._descriptor in _held and _is_at(self._path, self._descriptor):
                self._path.unlink()

    def __exit__(self, *_: Any) -> None:
        self.remove()
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None


def _locked(path: Path) -> int | None:
    """A descriptor of the locked file; None: another process has it."""
    while True:
        with _written(path.parent):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (EAGAIN, EACCES):
                os.close(descriptor)
                return None
            warnings.warn(
                f"run directory {path.parent} cannot be locked ({disk_reason(error)}); start no second training there",
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


@contextlib.contextmanager
def readable(path: Path, *, damage: Sequence[type[Exception]] = ()) -> Iterator[None]:
    """Refuse what is read there in one sentence where that fails, or raises what damaged files do."""
    try:
        yield
    except BowError:
        raise
    except OSError as error:
        where = path if error.filename is None else os.fsdecode(error.filename)
        raise RunDirectoryError(
            f"{where} cannot be read ({disk_reason(error)}); make it readable, or name another one"
        ) from error
    except tuple(damage) as error:
        raise RunDirectoryError(
            f"what is in {path} is damaged ({type(error).__name__}: {reason(error)}); name another run"
        ) from error


PART = ".tmp"  # ends the names of files that are being written


class RunDirectory:
    """Where the files of one run are. `create` makes one; the constructor only names one that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.yaml"  # the settings of the run
        self.metrics_path = path / "metrics.jsonl"  # the records of the run, one JSON object a line
        self.report_path = path / "report.html"  # one self-contained page
        self.model_path = path / "model.safetensors"  # parameters and buffers of the central model
        self.best_path = path / "best.safetensors"  # the same at the best evaluation, if that was not the last
        self.checkpoints = path / "checkpoints"  # made by the first checkpoint

    @classmethod
    def create(
        cls, path: str | Path | None, name: str, root: str | Path = "runs", *, resume: bool = False
    ) -> "RunDirectory":
        """Make a directory for a run, or take the one that is to be resumed."""
        directory = cls(_make_unique(Path(root), name) if path is None else Path(path))
        with _written(directory.path):
            directory.path.mkdir(parents=True, exist_ok=True)
        if not resume:
            directory._check_vacant()
        directory._check_writable()
        return directory

    def check(self, resume: bool) -> None:
        """Refuse a directory that is there and cannot be used, without writing anything."""
        if not self.path.exists():
            return
        if not resume:
            self._check_vacant()
        if self.path.is_dir():
            self._check_writable()

    @property
    def holds_run(self) -> bool:
        """Whether a run has left records or checkpoints here."""
        return self.metrics_path.exists() or self.checkpoints.is_dir()

    def remove_leftovers(self) -> None:
        """Delete what a training was writing when it was killed."""
        parts = self.config_path.with_suffix(PART), *self.path.glob(f"*.safetensors{PART}")
        for part in (*parts, *self.checkpoints.glob(f"round_*{PART}")):
            with contextlib.suppress(OSError):
                part.unlink()

    def discard(self) -> None:
        """Take back what a training that never got going has written: settings, records, the empty directory."""
        self.config_path.unlink(missing_ok=True)
        self.metrics_path.unlink(missing_ok=True)
        (self.path / LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there are other files in it, which are not ours to delete
            self.path.rmdir()

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """Write the settings; what YAML has no word for, such as a function, is written as readable text."""
        text = yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True)
        is_new, part = not self.holds_run, self.config_path.with_suffix(PART)
        try:
            with _written(self.path):
                self.metrics_path.touch()  # by its records a run is known, and goes on, however soon it ends
                part.write_text(text, encoding="utf-8")
                part.replace(self.config_path)
        except RunDirectoryError:
            part.unlink(missing_ok=True)
            if is_new:
                self.discard()
            raise

    def read_config(self) -> Mapping[str, Any]:
        """The settings; empty where the file is missing or damaged."""
        try:
            settings = yaml.safe_load(self.config_path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return {}
        return settings if isinstance(settings, Mapping) else {}

    def _check_writable(self) -> None:
        with _written(self.path), tempfile.TemporaryFile(dir=self.path):
            pass

    def _check_vacant(self) -> None:
        if self.holds_run:
            has_ended = self.model_path.exists() and not self.checkpoints.is_dir()
            way_on = "" if has_ended else 'continue it with resume="auto", or '
            raise RunDirectoryError(f"run directory {self.path} already holds a run; {way_on}name another one")
        for file in (self.config_path, self.report_path, self.model_path):
            if file.exists():
                raise RunDirectoryError(
                    f"run directory {self.path} already has a file {file.name}, which the run would overwrite; move it "
                    "away, or name another one"
                )


def _make_unique(root: Path, name: str) -> Path:
    slug = re.sub(r"[^\w.-]+", "-", name).strip("-") or "run"
    stem = f"{datetime.datetime.now():%Y-%m-%d_%H%M%S}_{slug}"
    for number in itertools.count(1):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        with _written(path):
            try:
                # The directory is the lock: of two runs that start in one second only one can make it.
                path.mkdir(parents=True)
            except FileExistsError:
                if root.is_dir():
                    continue
                raise NotADirectoryError(0, f"{root} is a file") from None
        return path
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    """Refuse a run directory where writing there fails."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"run directory {path} cannot be written ({disk_reason(error)}); name one that can be"
        ) from error
