"""Choices of earlier trainings on disk: one file for each model, shapes, hardware and versions."""

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bow.errors import BowError, SettingError, disk_reason
from bow.files import write_whole
from bow.tuner.trial import Setting

FORMAT = "bow choice"
VERSION = 1


@dataclass(frozen=True)
class Choice:
    """What was chosen for a description.

    Attributes:
        setting: the choice.
        rows: of its decision table, as plain values; none where it was pinned by hand.
        pinned: whether it is fixed: nothing is measured, and no later choice replaces it.
    """

    setting: Setting
    rows: Sequence[Mapping[str, Any]] = ()
    pinned: bool = False


class ChoiceCache:
    """Keeps choices as JSON files in a folder.

    A choice is found again by its description: a dictionary of plain values with everything that it depends on, such as
    the model's parameters and buffers by name and shape, the optimizer, the synchroniser, the shapes and dtypes of a
    batch, precision, processor, number of cores, GPU, and versions. What is left out does not matter, and what is in
    there in vain makes every training measure anew.

    Several processes may use a folder at the same time: a file appears whole or not at all, and the last one wins. A
    file that is damaged, or of another version, counts as none. Pins are files of their own, so that a choice that
    another process stores at the same moment cannot undo one.

    Args:
        folder: made when something is stored.

    Example:
        >>> cache = ChoiceCache(getfixture("tmp_path"))
        >>> description = {"model": "LeNet", "parameters": 431080, "batch": [16, 1, 28, 28], "cores": 2}
        >>> cache.store(description, Choice(Setting("graph", learners=4)))
        True
        >>> print(cache.find(description).setting)
        graph, 4 learners
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def find(self, description: Mapping[str, Any]) -> Choice | None:
        """The choice for a description, first of all one that is pinned; None where there is none."""
        for pinned in (True, False):
            choice = _read(self._path(description, pinned), _plain(description), pinned)
            if choice is not None:
                return choice
        return None

    def store(self, description: Mapping[str, Any], choice: Choice) -> bool:
        """Keep a choice for later trainings.

        Warns:
            UserWarning: the folder cannot be written; the training can go on without.
        """
        try:
            self._write(description, choice, pinned=False)
        except OSError as error:
            problem = f"the tuner's choice cannot be kept in {self.folder} ({disk_reason(error)})"
            warnings.warn(f"{problem}; make it writable, or use cache=False", stacklevel=2)
            return False
        return True

    def pin(self, description: Mapping[str, Any], setting: Setting) -> None:
        """Fix what is chosen for a description, until the file is deleted."""
        try:
            self._write(description, Choice(setting), pinned=True)
        except OSError as error:
            raise SettingError(
                f"the pin cannot be kept in {self.folder} ({disk_reason(error)}); make the folder writable"
            ) from error

    def _path(self, description: Mapping[str, Any], pinned: bool) -> Path:
        return self.folder / f"{key_of(description)}{'.pin' if pinned else ''}.json"

    def _write(self, description: Mapping[str, Any], choice: Choice, pinned: bool) -> None:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "description": _plain(description),
            "setting": dataclasses.asdict(choice.setting),
            "rows": list(choice.rows),
        }
        write_whole(self._path(description, pinned), json.dumps(content, indent=1) + "\n")


def key_of(description: Mapping[str, Any]) -> str:
    """A name for a description: the same for equal ones, whatever the order of their keys.

    Example:
        >>> key_of({"model": "LeNet", "cores": 2}) == key_of({"cores": 2, "model": "LeNet"})
        True
        >>> key_of({"shapes": (16, 1)}) == key_of({"shapes": [16, 1]})
        True
    """
    try:
        text = json.dumps(description, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"a description takes plain values only ({error}); use texts, finite numbers, lists and dictionaries"
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _plain(description: Mapping[str, Any]) -> Any:
    """A description as it is read again: tuples become lists."""
    key_of(description)  # refuses what is not plain
    return json.loads(json.dumps(description))


def _read(path: Path, description: Any, pinned: bool) -> Choice | None:
    """What a file holds for a description; None where it is missing, damaged, of another version or of another."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (FORMAT, VERSION) or content["description"] != description:
            return None
        return Choice(Setting(**content["setting"]), tuple(content["rows"]), pinned)
    except (OSError, ValueError, KeyError, TypeError, BowError):
        return None
