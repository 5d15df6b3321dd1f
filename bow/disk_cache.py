"""What was measured before, kept on disk as JSON: one file for each description of what it depends on."""

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

PIN = ".pin"  # the suffix of what users have fixed, which is deleted by them alone


class JsonCache:
    """JSON files in a folder, each found again by a key of plain values: texts, finite numbers, lists, dictionaries.

    Several processes may use a folder at the same time: a file appears whole or not at all, and the last writer wins.
    A file that is missing, damaged, of another version or of another key counts as none. What a key leaves out does not
    matter, and whatever a key holds needlessly makes others measure anew.

    Example:
        >>> cache = JsonCache(getfixture("tmp_path"))
        >>> cache.store({"model": "LeNet", "shape": (16, 1)}, {"learners": 4})
        >>> cache.find({"shape": [16, 1], "model": "LeNet"})
        {'learners': 4}
    """

    def __init__(self, folder: str | Path, version: int = 1) -> None:
        self.folder = Path(folder)  # made when something is stored
        self.version = version  # of the values; those of another version count as none

    def find(self, key: Any, parse: Callable[[Any], T | None] = lambda value: value, suffix: str = "") -> T | None:
        """What `parse` makes of the value of a key; None where there is none, or `parse` refuses it."""
        plain = _plain(key)

        def make(content: Any) -> T | None:
            return parse(content["value"]) if (content["version"], content["key"]) == (self.version, plain) else None

        path = self.path(key, suffix)
        found = cached_json(path, make)
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(path)  # what was used last is trimmed last
        return found

    def store(self, key: Any, value: Any, suffix: str = "") -> None:
        content = {"version": self.version, "key": _plain(key), "value": value}
        write_whole(self.path(key, suffix), json.dumps(content, indent=1) + "\n")

    def path(self, key: Any, suffix: str = "") -> Path:
        """The file of a key, the same for equal keys, whatever the order of a dictionary's entries."""
        text = json.dumps(_plain(key), sort_keys=True, separators=(",", ":"))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}{suffix}.json"


def _plain(key: Any) -> Any:
    """A key as it is read again: tuples become lists."""
    try:
        return json.loads(json.dumps(key, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"a description takes plain values only ({error}); use texts, finite numbers, lists and dictionaries"
        ) from error
