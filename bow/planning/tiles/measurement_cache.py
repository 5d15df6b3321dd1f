"""On-disk cache of measurements, keyed by what they depend on and the versions of PyTorch and bow."""

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
    """The cached measurements for a description, in a folder of the cache."""

    def __init__(self, folder: str, *described: object) -> None:
        bow_version = sys.modules["bow"].__version__  # importing bow here would invert the layers
        self._folder, self._key = folder, [*described, torch.__version__, bow_version]

    def load(self, make: Callable[[Any], T | None]) -> T | None:
        with contextlib.suppress(BowError):  # no cache folder
            return JsonCache(cache_folder() / self._folder).find(self._key, make)
        return None

    def keep(self, value: Any) -> None:
        """Store a value; raise `OSError` or `BowError` if the cache cannot be written."""
        JsonCache(cache_folder() / self._folder).store(self._key, value)
