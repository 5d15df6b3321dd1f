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
from collections.abc import Iterator, Mapping, Sequence
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import Any

import yaml

from bow.errors import BowError, RunDirectoryError, disk_reason, reason, warn_user
from bow.observe.records import plain

LOCK = ".lock"

_held: set[int] = set()


class RunLock(contextlib.AbstractContextManager["RunLock"]):
    """Keeps other trainings out of a run directory by `flock`, which the system releases however the process ends.

    Forked children do not hold it: workers of a `DataLoader` may outlive a killed training.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._path = Path()

    def take(self, directory: Path, patience_s: float = 0.0) -> None:
        """Lock an existing directory; no effect if this lock is already held."""
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
        with contextlib.suppress(OSError):  # on a full disk the process id is omitted
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {socket.gethostname()}".encode())

    def __exit__(self, *_: Any) -> None:
        if self._descriptor in _held:
            with contextlib.suppress(OSError):
                if _is_at(self._path, self._descriptor):  # still the file that is locked
                    self._path.unlink()
            _held.remove(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None


def _locked(path: Path) -> int | None:
    while True:
        with _written(path.parent):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (EAGAIN, EACCES):
                os.close(descriptor)
                return None
            warn_user(
                f"run directory {path.parent} cannot be locked ({disk_reason(error)}); start no other training in it",
            )
            return descriptor
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # the training that held it has ended and deleted it


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """Return the process that holds the lock, in brackets; empty if unknown."""
    try:
        number, host = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return ""
    return f" (process {number})" if host == socket.gethostname() else f" (process {number} on {host})"


@functools.cache
def _let_go_in_children() -> None:
    def let_go() -> None:
        for descriptor in _held:
            os.close(descriptor)  # does not release the parent's lock
        _held.clear()

    os.register_at_fork(after_in_child=let_go)


@contextlib.contextmanager
def readable(path: Path, *, damage: Sequence[type[Exception]] = ()) -> Iterator[None]:
    """Report failed reads, and the exceptions that damaged files cause, in one sentence."""
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
            f"{path} is damaged ({type(error).__name__}: {reason(error)}); name another run"
        ) from error


PART = ".tmp"  # suffix of files being written


class RunDirectory:
    """The files of one run. `create` makes a directory; the constructor only refers to one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.yaml"  # settings of the run
        self.metrics_path = path / "metrics.jsonl"  # records of the run, one JSON object per line
        self.report_path = path / "report.html"  # one self-contained page
        self.model_path = path / "model.safetensors"  # parameters and buffers of the central model
        self.best_path = path / "best.safetensors"  # the same at the best evaluation, if that was not the last
        self.checkpoints = path / "checkpoints"  # created with the first checkpoint

    @classmethod
    def create(
        cls, path: str | Path | None, name: str, root: str | Path = "runs", *, resume: bool = False
    ) -> "RunDirectory":
        directory = cls(_make_unique(Path(root), name) if path is None else Path(path))
        with _written(directory.path):
            directory.path.mkdir(parents=True, exist_ok=True)
        if not resume:
            directory._check_vacant()
        directory._check_writable()
        return directory

    def check(self, resume: bool) -> None:
        """Refuse an existing directory that cannot be used, without writing anything."""
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
        parts = self.config_path.with_suffix(PART), *self.path.glob(f"*.safetensors{PART}")
        for part in (*parts, *self.checkpoints.glob(f"round_*{PART}")):
            with contextlib.suppress(OSError):
                part.unlink()

    def discard(self) -> None:
        """Delete the files of a training that failed before it began: settings, records, and the directory if empty."""
        self.config_path.unlink(missing_ok=True)
        self.metrics_path.unlink(missing_ok=True)
        (self.path / LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: keep other files
            self.path.rmdir()

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """Write the settings; values that YAML cannot express, such as functions, as readable text."""
        text = yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True)  # libyaml escapes emoji
        is_new, part = not self.holds_run, self.config_path.with_suffix(PART)
        try:
            with _written(self.path):
                self.metrics_path.touch()  # records identify a run, which can be resumed however soon it ends
                part.write_text(text, encoding="utf-8")
                part.replace(self.config_path)
        except RunDirectoryError:
            part.unlink(missing_ok=True)
            if is_new:
                self.discard()
            raise

    def read_config(self) -> Mapping[str, Any]:
        """Return the settings; empty if the file is missing or damaged."""
        try:
            settings = yaml.load(self.config_path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return {}
        return settings if isinstance(settings, Mapping) else {}

    def _check_writable(self) -> None:
        with _written(self.path), tempfile.TemporaryFile(dir=self.path):
            pass

    def _check_vacant(self) -> None:
        if self.holds_run:
            has_ended = self.model_path.exists() and not self.checkpoints.is_dir()
            way_on = "" if has_ended else 'continue it with resume="auto" (in the shell run.resume=auto), or '
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
                # mkdir is atomic: of two runs that start in the same second, only one can create the directory.
                path.mkdir(parents=True)
            except FileExistsError:
                if root.is_dir():
                    continue
                raise NotADirectoryError(0, f"{root} is a file") from None
        return path
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"run directory {path} cannot be written ({disk_reason(error)}); choose a writable directory"
        ) from error
