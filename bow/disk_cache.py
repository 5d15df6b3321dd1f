"""Cache of measurements on disk: one JSON file for each key that describes what they depend on."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bow.errors import SettingError
from bow.files import cached_json, write_whole

T = TypeVar("T")

PIN = ".pin"  # suffix of files that users pinned, which only users delete


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

    def __init__(self, folder: str | Path, version: int = 1) -> None:
        self.folder = Path(folder)  # created when something is stored
        self.version = version  # of the values; other versions count as absent

    def find(self, key: Any, parse: Callable[[Any], T | None] = lambda value: value, suffix: str = "") -> T | None:
        """Return the parsed value of a key; None if it is absent or `parse` returns None."""
        plain = _plain(key)

        def make(content: Any) -> T | None:
            return parse(content["value"]) if (content["version"], content["key"]) == (self.version, plain) else None

        path = self.path(key, suffix)
        found = cached_json(path, make)
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(path)  # last used, last trimmed
        return found

    def store(self, key: Any, value: Any, suffix: str = "") -> None:
        content = {"version": self.version, "key": _plain(key), "value": value}
        write_whole(self.path(key, suffix), json.dumps(content, indent=1) + "\n")

    def path(self, key: Any, suffix: str = "") -> Path:
        """Return the file of a key, independent of the order of dictionary entries."""
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
