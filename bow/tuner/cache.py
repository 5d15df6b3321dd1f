"""On-disk cache of choices: one file per combination of model, shapes, hardware and versions."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bow.errors import SettingError, disk_reason, warn_user
from bow.files import PIN, JsonCache
from bow.tuner.record import EngineSetting


@dataclass(frozen=True)
class CachedChoice:
    """A choice of an earlier training."""

    setting: EngineSetting
    rows: Sequence[Mapping[str, Any]] = ()  # of its decision table, as plain values; empty if pinned by hand
    pinned: bool = False  # fixed: nothing is measured, and no later choice replaces it


class ChoiceCache:
    """Stores choices in a folder by description; pins are separate files, which choices do not overwrite."""

    def __init__(self, folder: str | Path) -> None:
        self._cache = JsonCache(folder)
        self.folder = self._cache.folder

    def find(self, description: Mapping[str, Any]) -> CachedChoice | None:
        pin = self._cache.find(
            description, lambda value: CachedChoice(EngineSetting(**value["setting"]), (), True), PIN
        )
        return pin or self._cache.find(
            description, lambda value: CachedChoice(EngineSetting(**value["setting"]), tuple(value["rows"]))
        )

    def store(self, description: Mapping[str, Any], choice: CachedChoice) -> bool:
        """Store a choice for later trainings; a folder that cannot be written is a warning, not an error."""
        value = {"setting": dataclasses.asdict(choice.setting), "rows": list(choice.rows)}
        try:
            self._cache.store(description, value)
        except OSError as error:
            problem = f"the tuner's choice cannot be kept in {self.folder} ({disk_reason(error)})"
            warn_user(f"{problem}; make it writable, or use cache=False")
            return False
        return True

    def pin(self, description: Mapping[str, Any], setting: EngineSetting) -> None:
        try:
            self._cache.store(description, {"setting": dataclasses.asdict(setting)}, PIN)
        except OSError as error:
            raise SettingError(
                f"the pin cannot be kept in {self.folder} ({disk_reason(error)}); make the folder writable"
            ) from error
