"""Makes bow run where it was not installed: from a checkout, with not all packages that it asks for.

A machine with a GPU is often lent bare, with PyTorch and little else. What measuring does not need (tables on the
terminal, checks of shapes, run directories) is then stood in for while bow is imported; what is called for all the
same fails where it is used.
"""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]  # The checkout

ANNOTATIONS = "jaxtyping"  # Only names shapes; modules that are imported later name some, too

SPARED = ("rich", "safetensors", "yaml")  # Imported by modules of bow for what is not done here

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def prepare() -> list[str]:
    """Set what CUDA and OpenMP read when they start, and stand in for what is missing; the missing packages."""
    # With the default of 8 hardware queues, streams beyond that wait for each other.
    os.environ.setdefault(CONNECTIONS, "32")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return stand_in()


def stand_in() -> list[str]:
    """See to it that all modules that are measured can be imported; the packages that are missing."""
    missing = [name for name in (ANNOTATIONS, *SPARED) if not _is_there(name)]
    if missing:
        finder = _StandIns(missing)
        sys.meta_path.insert(0, finder)
        for name in missing:
            sys.modules.pop(name, None)  # a None there would forbid the import
        try:
            for module in ("bow.training", "bow.doctor", "bow.runtime"):
                importlib.import_module(module)
        finally:
            finder.names.intersection_update({ANNOTATIONS})
            # Others ask whether a package is there by importing it.
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
    """Stands for a class, a function or a type of a package that is not there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self._name}.{name}")

    def __getitem__(self, key: Any) -> Any:
        """A shaped type is the tensor type that it is made of."""
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
    """A package, or a module of one, that is not there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")


class _StandIns:
    """Finds stand-ins."""

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
