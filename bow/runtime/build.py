"""Compiling once and keeping the result: safe where several processes do so at the same moment."""

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils import cpp_extension

from bow.errors import RuntimeUnavailableError

CACHE = "BOW_CACHE"
"""Environment variable: the folder in which compiled code is kept, `~/.cache/bow` by default."""

FLAGS = ("-shared", "-fPIC", "-std=c++20", "-O3", "-march=native", "-DTORCH_API_INCLUDE_EXTENSION_H")


def cache_folder() -> Path:
    """Where compiled code is kept."""
    given, general = os.environ.get(CACHE), os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given)
    try:
        return Path(general or Path.home() / ".cache") / "bow"
    except RuntimeError as error:
        raise RuntimeUnavailableError(
            f"this user has no home folder to keep compiled code in; set {CACHE} to a folder that can be written to"
        ) from error


@functools.cache
def machine() -> str:
    """What compiled code depends on besides its source: processor, Python, torch, compiler."""
    described = [platform.machine(), sysconfig.get_config_var("SOABI"), torch.__version__, _compiler_version()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        described.append(next((line for line in lines if line.startswith(("flags", "Features"))), ""))
    return "\n".join(map(str, described))


def content_hash(*parts: str) -> str:
    """A name for what these texts, compiled on this machine, become."""
    return hashlib.sha256("\0".join((machine(), *parts)).encode()).hexdigest()[:24]


def built(folder: str, name: str, make: Callable[[Path], None]) -> Path:
    """The file `name` of a folder in the cache; where it is not there yet, `make` writes it.

    One process makes it while others wait for it; a file appears whole or not at all, and a process that dies leaves
    neither a part of it nor a lock.

    Args:
        folder: in the cache, named after the content.
        name: of the file.
        make: writes a file to the path that it is given.
    """
    path = cache_folder() / folder / name
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.with_suffix(".lock")):
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                    made = Path(scratch) / name
                    make(made)
                    made.replace(path)
    except OSError as error:
        raise RuntimeUnavailableError(
            f"compiled code cannot be kept in {path.parent} ({error.strerror or error}); set {CACHE} to a folder "
            "that can be written to"
        ) from error
    return path


def compile_extension(source: Path, target: Path, name: str) -> None:
    """Compile a C++ source into a Python module.

    Raises:
        RuntimeUnavailableError: there is no compiler, or it fails.
    """
    includes = [*cpp_extension.include_paths("cpu"), sysconfig.get_paths()["include"]]
    libraries = cpp_extension.library_paths("cpu")
    command = [
        *compiler(),
        *FLAGS,
        f"-DTORCH_EXTENSION_NAME={name}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(flag for path in includes for flag in ("-isystem", path)),
        str(source),
        "-o",
        str(target),
        *(f"-L{path}" for path in libraries),
        *("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise RuntimeUnavailableError(f"{command[0]} cannot compile the native runtime: {first.strip()}")


def compiler() -> list[str]:
    """The command of the C++ compiler: `CXX`, or what is called g++, c++ or clang++.

    Raises:
        RuntimeUnavailableError: there is none.
    """
    given = shlex.split(os.environ.get("CXX", ""))
    wanted = [given] if given else [["g++"], ["c++"], ["clang++"]]
    found = next((command for command in wanted if shutil.which(command[0])), None)
    if found is None:
        names = " or ".join(command[0] for command in wanted)
        raise RuntimeUnavailableError(
            f"the native runtime needs a C++ compiler, and there is no {names}; install one "
            "(Debian and Ubuntu: apt install g++)"
        )
    return found


def _compiler_version() -> str:
    try:
        command = [*compiler(), "--version"]
    except RuntimeUnavailableError:
        return "none"
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition("\n")[0]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system lets go of it when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
