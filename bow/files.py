"""Writing text: files that appear whole, and streams that may be lost."""

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from bow.errors import BowError, SettingError, disk_reason
from bow.values import given_path


class Expendable:
    """A text stream whose failures end nothing: when it cannot be written any more, what it is given is dropped.

    Standard output can be a pipe whose reader has gone, a file on a full disk, or closed.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.error: Exception | None = None

    def write(self, text: str) -> int:
        """Write what can be written."""
        if self._stream is not None and self.error is None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self.write(text.encode(error.encoding, "replace").decode(error.encoding))
            except (OSError, ValueError) as error:  # the latter where it is closed
                self.error = error
        return len(text)

    def flush(self) -> None:
        """Write what is held back, if that can be written."""
        if self._stream is not None and self.error is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: it appears whole or not at all, also with several writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:  # no other writer has the same
        part = Path(scratch) / path.name
        part.write_text(text, encoding="utf-8")
        part.replace(path)


def spare_files(stem: str, suffix: str) -> Iterator[Path]:
    """New files for what its own place cannot take: in the current directory, then in a temporary one."""
    with contextlib.suppress(OSError):  # a current directory can have been deleted
        here = Path.cwd()
        names = (f"{stem}{number}{suffix}" for number in itertools.chain([""], itertools.count(2)))
        yield next(here / name for name in names if not (here / name).exists())
    with contextlib.suppress(OSError):
        there = Path(tempfile.mkdtemp(prefix="bow_"))
        yield there / f"{stem}{suffix}"
        there.rmdir()  # it could not be written either


def save_text(what: str, path: str | Path, text: str, refusal: type[BowError] = SettingError) -> None:
    """Write a file that a user has named."""
    file = given_path(f"the file for {what}", path, refusal)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise refusal(f"{what} cannot be written to {str(path)!r} ({disk_reason(error)}); give another file") from error


def read_text(what: str, path: str | Path, refusal: type[BowError] = SettingError) -> str:
    """Read a file that a user has named; arguments as for `save_text`."""
    file = given_path(f"the file of {what}", path, refusal)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise refusal(f"{what} cannot be read from {str(path)!r} ({why}); give another file") from error
