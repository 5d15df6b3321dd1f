"""Text and JSON files with atomic writes and clear errors on damage, a cache of them; output streams that may fail."""

import contextlib
import hashlib
import io
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from bow.errors import BowError, SettingError, disk_reason
from bow.values import given_path

T = TypeVar("T")

# Exceptions that reading a damaged file raises.
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


class Expendable:
    """A text stream whose failures are ignored: once it cannot be written, output is dropped."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = io.StringIO() if stream is None else stream  # None is what Python has for one that was closed
        self.error: Exception | None = BrokenPipeError() if stream is None else None

    def write(self, text: str) -> int:
        if self.error is None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self.write(text.encode(error.encoding, "replace").decode(error.encoding))
            except (OSError, ValueError) as error:  # ValueError: it is closed
                self.error = error
        return len(text)

    def flush(self) -> None:
        if self.error is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:  # unique to this writer
        part = Path(scratch) / path.name
        part.write_text(text, encoding="utf-8")
        part.replace(path)


def spare_files(stem: str, suffix: str) -> Iterator[Path]:
    """Yield new paths for a file whose own place failed: in the current directory, then in a temporary one."""
    with contextlib.suppress(OSError):  # the current directory may have been deleted
        here = Path.cwd()
        names = (f"{stem}{number}{suffix}" for number in itertools.chain([""], itertools.count(2)))
        yield next(here / name for name in names if not (here / name).exists())
    with contextlib.suppress(OSError):
        there = Path(tempfile.mkdtemp(prefix="bow_"))
        yield there / f"{stem}{suffix}"
        there.rmdir()  # writing there failed, too


def save_text(what: str, path: str | Path, text: str, refusal: type[BowError] = SettingError) -> None:
    file = given_path(f"the file for {what}", path, refusal)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise refusal(f"{what} cannot be written to {str(path)!r} ({disk_reason(error)}); give another file") from error


def read_text(what: str, path: str | Path, refusal: type[BowError] = SettingError) -> str:
    """Read a file that the user named; arguments as for `save_text`."""
    file = given_path(f"the file of {what}", path, refusal)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "the file is not UTF-8 text"
        raise refusal(f"{what} cannot be read from {str(path)!r} ({why}); give another file") from error


@dataclass(frozen=True)
class JsonFormat:
    """A versioned format of JSON objects; damaged ones are refused with a one-sentence error.

    Example:
        >>> points = JsonFormat("bow point", 1, subject="the point", writer="Point.to_json", remedy="write it again")
        >>> text = points.dumps({"x": 3})
        >>> points.loads(text, lambda fields: fields["x"])
        3
        >>> points.loads(text, lambda fields: fields["y"])
        Traceback (most recent call last):
        bow.errors.SettingError: the point is damaged (KeyError: 'y'); write it again
    """

    name: str
    version: int
    subject: str  # subject of the error messages, such as "the schedule"
    writer: str  # function that writes such objects, such as "Schedule.to_json"
    remedy: str  # such as "make it again"
    refusal: type[BowError] = SettingError

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object to write: format, version, then the fields."""
        return {"format": self.name, "version": self.version, **fields}

    def dumps(self, fields: Mapping[str, Any], indent: int | None = None) -> str:
        return json.dumps(self.fields(fields), indent=indent)

    def loads(self, text: str, make: Callable[[dict[str, Any]], T]) -> T:
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.refusal(f"{self.subject} is not JSON ({error}); {self.remedy}") from error
        if not isinstance(read, dict) or read.get("format") != self.name:
            raise self.refusal(f'the text is not a "{self.name}"; give one that {self.writer} wrote')
        if read.get("version") != self.version:
            raise self.refusal(
                f"{self.subject} has version {read.get('version')}, this bow reads {self.version}; {self.remedy}"
            )
        try:
            return make(read)
        except self.refusal:
            raise
        except DAMAGE as error:
            raise self.refusal(f"{self.subject} is damaged ({type(error).__name__}: {error}); {self.remedy}") from error


def whole_numbers(numbers: Iterable[Any]) -> tuple[int, ...]:
    """Read a list of whole numbers; anything else is a `TypeError`, as of a damaged object."""
    read = tuple(numbers)
    for number in read:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{number!r} is not a whole number")
    return read


PIN = ".pin"  # suffix of files that users pinned, which only users delete
VERSION = 1  # of cached files


class JsonCache:
    """JSON files in a folder, found by a key of plain values: texts, finite numbers, lists, dictionaries.

    Several processes may use a folder at the same time: writes are atomic, and the last writer wins. A file that is
    missing, damaged, or of another version or key counts as absent. A key must hold everything that the value depends
    on; anything else in it only causes repeated measurements.

    Example:
        >>> cache = JsonCache(getfixture("tmp_path"))
        >>> cache.store({"model": "LeNet", "shape": (16, 1)}, {"learners": 4})
        >>> cache.find({"shape": [16, 1], "model": "LeNet"})
        {'learners': 4}
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)  # created when something is stored

    def find(self, key: Any, parse: Callable[[Any], T | None] = lambda value: value, suffix: str = "") -> T | None:
        """Return the parsed value of a key; None if it is absent or `parse` returns None."""
        path = self.path(key, suffix)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            is_of_key = (content["version"], content["key"]) == (VERSION, _plain(key))
            found = parse(content["value"]) if is_of_key else None
        except (OSError, *DAMAGE):
            return None
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(path)  # last used, last trimmed
        return found

    def store(self, key: Any, value: Any, suffix: str = "") -> None:
        content = {"version": VERSION, "key": _plain(key), "value": value}
        write_whole(self.path(key, suffix), json.dumps(content, indent=1) + "\n")

    def path(self, key: Any, suffix: str = "") -> Path:
        text = json.dumps(_plain(key), sort_keys=True, separators=(",", ":"))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}{suffix}.json"


def _plain(key: Any) -> Any:
    """Convert a key to its form after JSON: tuples become lists."""
    try:
        return json.loads(json.dumps(key, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"a description takes plain values only ({error}); use texts, finite numbers, lists and dictionaries"
        ) from error
