"""Where measurements are kept on disk: by what they depend on, PyTorch and bow."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from bow.compiling import cache_folder
from bow.disk_cache import JsonCache
from bow.errors import BowError

T = TypeVar("T")


class Measurements:
    """What was measured on what is described, in a folder of the cache."""

    def __init__(self, folder: str, *described: object) -> None:
        bow_version = sys.modules["bow"].__version__  # importing bow here would turn the layers round
        self._folder, self._key = folder, [*described, torch.__version__, bow_version]

    def load(self, make: Callable[[Any], T | None]) -> T | None:
        """None: there is nothing that can be read."""
        with contextlib.suppress(BowError):  # there is no place for it
            return JsonCache(cache_folder() / self._folder).find(self._key, make)
        return None

    def keep(self, value: Any) -> None:
        """Raises `OSError` or `BowError` where there is no place for it."""
        JsonCache(cache_folder() / self._folder).store(self._key, value)
