"""The native runtime: built from `kernels/` when it is first used."""

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from bow.compiling import built, cache_folder
from bow.errors import RuntimeUnavailableError
from bow.files import Expendable
from bow.runtime.build import FLAGS, compile_extension, content_hash

MODULE = "bow_native"
MAIN_SOURCE = "bindings.cpp"
SOURCES = (MAIN_SOURCE, "averaging.h", "executors.h", "nodes.h")

NativeJob: TypeAlias = Any
"""`bow_native.Job`: nodes with a schedule."""

NativeTeam: TypeAlias = Any
"""`bow_native.Team`: executors."""


def native() -> ModuleType:
    """The compiled module."""
    module = _attempt()
    if isinstance(module, RuntimeUnavailableError):
        raise RuntimeUnavailableError(*module.args)  # a new one: an error keeps the frames that it went through
    return module


def is_available() -> bool:
    """Whether there is a native runtime; builds it if need be."""
    return isinstance(_attempt(), ModuleType)


def is_built() -> bool:
    """Whether it was built on this machine before, so that it only has to be loaded."""
    return (cache_folder() / _key() / f"{MODULE}.so").exists()


@functools.cache
def _attempt() -> ModuleType | RuntimeUnavailableError:
    """One attempt a process: what failed once would fail again, slowly."""
    try:
        return _load()
    except RuntimeUnavailableError as error:
        return error


def _load() -> ModuleType:
    folder, key = _sources(), _key()

    def make(target: Path) -> None:
        print(
            "bow: building the native runtime, once on this machine; it takes about a minute",
            file=Expendable(sys.stderr),
        )
        compile_extension(folder / MAIN_SOURCE, target, MODULE)

    library = built(key, f"{MODULE}.so", make)
    spec = importlib.util.spec_from_file_location(MODULE, library)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"the compiled runtime cannot be loaded ({error}); delete {library.parent} and try again"
        ) from error
    return module


def _sources() -> Path:
    return Path(next(iter(importlib.import_module("bow.kernels").__path__)))


def _key() -> str:
    """Changes with everything that the module is built from."""
    sources = [_sources() / name for name in SOURCES]
    return f"runtime-{content_hash(*FLAGS, *(path.name + path.read_text(encoding='utf-8') for path in sources))}"
