"""Run bow from a checkout in an environment that lacks some of its dependencies.

Borrowed GPU machines often have PyTorch and little else. Packages that measurements do not need (terminal tables, shape
checks, run directories) are replaced by stubs while bow is imported; using a stub raises an
error.
"""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ANNOTATIONS = "jaxtyping"  # only used in annotations; also needed by modules that are imported later

SPARED = ("rich", "safetensors", "yaml")  # imported by modules of bow for unused features

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def prepare() -> list[str]:
    """Set the environment variables of CUDA and OpenMP, and stub missing packages; returns their names."""
    # With the default of 8 hardware queues, more streams would wait for each other.
    os.environ.setdefault(CONNECTIONS, "32")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return stand_in()


def stand_in() -> list[str]:
    """Make all measured modules importable; returns the missing packages."""
    missing = [name for name in (ANNOTATIONS, *SPARED) if not _is_there(name)]
    if missing:
        finder = _StandIns(missing)
        sys.meta_path.insert(0, finder)
        for name in missing:
            sys.modules.pop(name, None)  # a None there would block the import
        try:
            for module in ("bow.training", "bow.doctor", "bow.runtime"):
                importlib.import_module(module)
        finally:
            finder.names.intersection_update({ANNOTATIONS})
            # Other libraries detect packages by importing them.
            for name in [name for name in sys.modules if name.partition(".")[0] in set(missing) - {ANNOTATIONS}]:
                del sys.modules[name]
    return missing


def _is_there(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


class _Anything:
    """Stub of a class, a function or a type of a missing package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self._name}.{name}")

    def __getitem__(self, key: Any) -> Any:
        """A shaped type is its tensor type."""
        return key[0] if isinstance(key, tuple) and key else self

    def __or__(self, other: Any) -> Any:
        return other

    def __ror__(self, other: Any) -> Any:
        return other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ModuleNotFoundError(f"{self._name} was called, and the package is not installed")

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _StandIn(ModuleType):
    """Stub of a missing package or module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")


class _StandIns:
    """Import finder of the stubs."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = set(names)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.names:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
