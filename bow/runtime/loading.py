"""The native runtime: compiled from `kernels/` on first use; flags, sources and cache key."""

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import torch

from bow.compiling import NO_COMPILER, built, cache_folder, compile_cpp, compiler_version, instruction_set, loaded_once
from bow.errors import RuntimeUnavailableError

FLAGS = ("-shared", "-fPIC", "-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-DAT_PER_OPERATOR_HEADERS")

MODULE = "bow_native"
MAIN_SOURCE = "bindings.cpp"
SOURCES = (MAIN_SOURCE, "averaging.h", "executors.h", "nodes.h")

BUILD_S = 30.0  # build time on one core, roughly

NativeJob: TypeAlias = Any  # `bow_native.Job`: nodes with a schedule

NativeTeam: TypeAlias = Any  # `bow_native.Team`: executors


def native() -> ModuleType:
    return _load()


def is_available() -> bool:
    try:
        _load()
    except RuntimeUnavailableError:
        return False
    return True


def build() -> int:
    try:
        native()
    except RuntimeUnavailableError as error:
        message = "the native runtime is not available; engine eager is used instead of graph"
        print(f"bow: {message}: {error}", file=sys.stderr)
        return 1
    return 0


def is_built() -> bool:
    return os.path.exists(cache_folder() / _key() / f"{MODULE}.so")  # noqa: PTH110 - False if the folder cannot be read


def can_be_built() -> bool:
    """Whether it has not been built, and there is a compiler."""
    return not is_built() and compiler_version() != NO_COMPILER


@loaded_once
def _load() -> ModuleType:
    folder, key = _sources(), _key()

    def make(target: Path) -> None:
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
    sources = [_sources() / name for name in SOURCES]
    return f"runtime-{content_hash(*FLAGS, *(path.name + path.read_text(encoding='utf-8') for path in sources))}"


@functools.cache
def machine() -> str:
    """Return the dependencies of compiled code other than its source: processor, Python, torch, compiler."""
    python = sysconfig.get_config_var("SOABI")
    return "\n".join(map(str, (instruction_set(), python, torch.__version__, compiler_version())))


def content_hash(*parts: str) -> str:
    """Hash texts together with `machine()`, as a name for the code compiled from them."""
    return hashlib.sha256("\0".join((machine(), *parts)).encode()).hexdigest()[:24]


def compile_extension(source: Path, target: Path, name: str) -> None:
    from torch.utils import cpp_extension  # imports setuptools

    includes = [*cpp_extension.include_paths("cpu"), sysconfig.get_paths()["include"]]
    libraries = cpp_extension.library_paths("cpu")
    arguments = [
        *FLAGS,
        f"-DTORCH_EXTENSION_NAME={name}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(flag for path in includes for flag in ("-isystem", path)),
        str(source),
        *(f"-L{path}" for path in libraries),
        *("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]
    compile_cpp("the native runtime", arguments, target, takes=f"{BUILD_S:.0f} s of one core")
