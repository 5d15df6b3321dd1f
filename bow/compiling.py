"""Compile C++ once and cache the result; safe with several processes at the same time."""

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bow.errors import RuntimeUnavailableError, disk_reason
from bow.files import PIN, Expendable, write_whole
from bow.interruption import Interruption

CACHE = "BOW_CACHE"  # environment variable: folder of the cache of compiled code, `~/.cache/bow` by default
# Size to which the cache is trimmed after every compilation; the least recently used files are deleted first.
MOST_BYTES = 2 * 2**30

SCRATCH = "making-"
POLL_S = 0.1  # between two looks for a signal while the compiler runs

NO_COMPILER = "none"

T = TypeVar("T")


def cache_folder() -> Path:
    given, general = os.environ.get(CACHE), os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given)
    try:
        return Path(general or Path.home() / ".cache") / "bow"
    except RuntimeError as error:
        raise RuntimeUnavailableError(
            f"this user has no home folder to keep compiled code in; set {CACHE} to a folder that can be written to"
        ) from error


def loaded_once(load: Callable[[], T]) -> Callable[[], T]:
    """Call `load` once per process: a failure would repeat, slowly; only one by a signal is tried again."""

    @functools.cache
    def attempt() -> T | RuntimeUnavailableError:
        try:
            return load()
        except RuntimeUnavailableError as error:
            if Interruption.pending:
                raise
            return error

    @functools.wraps(load)
    def loaded() -> T:
        found = attempt()
        if isinstance(found, RuntimeUnavailableError):
            raise RuntimeUnavailableError(*found.args)  # a new one: an error keeps the frames that it passed through
        return found

    return loaded


def built(folder: str, name: str, make: Callable[[Path], None]) -> Path:
    """Return the file `name` of a cache folder; if it is missing, one process creates it with `make`."""
    path = cache_folder() / folder / name
    if _is_whole(path) and _held(path):
        with contextlib.suppress(OSError):
            os.utime(path)
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.with_suffix(".lock")):
            if not _is_whole(path):
                for left in path.parent.glob(f"{SCRATCH}*"):
                    shutil.rmtree(left, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-", dir=path.parent) as scratch:
                    made = Path(scratch) / name
                    make(made)
                    write_whole(_checksum(path), _hash(made))
                    made.replace(path)
            if _held(path):
                trim_cache()
            path.with_suffix(".lock").unlink(missing_ok=True)  # processes waiting for it find the file
    except OSError as error:
        raise RuntimeUnavailableError(
            f"compiled code cannot be kept in {path.parent} ({disk_reason(error)}); set {CACHE} to a folder "
            "that can be written to"
        ) from error
    return path


_in_use: dict[Path, int] = {}  # open descriptors of cached files


def _held(path: Path) -> bool:
    """Keep a cached file while this process lives, since it may be loaded again; return False if it was deleted."""
    if path in _in_use and os.fstat(_in_use[path]).st_nlink > 0:
        return True
    try:
        _in_use[path] = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    with contextlib.suppress(OSError):  # not every file system supports locks
        fcntl.flock(_in_use[path], fcntl.LOCK_SH)
    return os.fstat(_in_use[path]).st_nlink > 0


def _checksum(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_whole(path: Path) -> bool:
    try:
        noted = _checksum(path)
        return path.exists() and (not noted.exists() or noted.read_text(encoding="ascii") == _hash(path))
    except (OSError, UnicodeDecodeError):
        return False


def cached_files() -> list[tuple[float, int, Path]]:
    """Return last use, size and path of the cached files, without locks, pins and unfinished files."""
    found = []
    for path in cache_folder().rglob("*"):
        with contextlib.suppress(OSError):
            stays = path.name.endswith((".lock", f"{PIN}.json")) or any(part.startswith(SCRATCH) for part in path.parts)
            if path.is_file() and not stays:
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
    return sorted(found)


def trim_cache(most_bytes: int = MOST_BYTES) -> int:
    """Delete the least recently used files until the rest is small enough; return the number of bytes freed."""
    files = cached_files()
    held = begun = sum(size for _, size, _ in files)
    for _, size, path in files:
        if held <= most_bytes:
            break
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails for a file in use
            path.unlink()
            held -= size
    return begun - held


def source_hash(*parts: str) -> str:
    return hashlib.sha256("\0".join((instruction_set(), compiler_version(), *parts)).encode()).hexdigest()[:24]


def compile_cpp(what: str, arguments: Sequence[str], target: Path, takes: str) -> None:
    command = [*compiler(what), *arguments, "-o", str(target)]
    print(f"bow: building {what}, once on this machine ({takes})", file=Expendable(sys.stderr))
    # In a group of its own: Ctrl-C reaches the compiler by us alone, whose parts would go on without it. Other threads
    # receive no signals, and leave it in ours.
    is_main = threading.current_thread() is threading.main_thread()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # What an interrupted compiler leaves is deleted with the folder of the target.
    environment = {**os.environ, "TMPDIR": str(target.parent)}
    with (
        _unwound_by_signals() if is_main else contextlib.nullcontext(),
        subprocess.Popen(command, **pipes, env=environment, process_group=0 if is_main else None) as made,
    ):
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    told = made.communicate(timeout=POLL_S)[1]
                    break
                if Interruption.pending:
                    raise RuntimeUnavailableError(f"{what} was not built: interrupted")
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                end = os.killpg if is_main else os.kill
                end(made.pid, signal.SIGTERM)
            made.communicate()
            raise
    if made.returncode:
        lines = told.splitlines() or [f"exit status {made.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise RuntimeUnavailableError(f"{command[0]} cannot compile {what}: {first.strip()}")


def compiler(what: str) -> list[str]:
    """Return the command of the C++ compiler: `CXX`, or the first of g++, c++, clang++."""
    given = shlex.split(os.environ.get("CXX", ""))
    wanted = [given] if given else [["g++"], ["c++"], ["clang++"]]
    found = next((command for command in wanted if shutil.which(command[0])), None)
    if found is None:
        names = " or ".join(command[0] for command in wanted)
        raise RuntimeUnavailableError(
            f"{what} needs a C++ compiler, and there is no {names}; install one (Debian and Ubuntu: apt install g++)"
        )
    return found


def compiler_version() -> str:
    try:
        command = [*compiler("it"), "--version"]
    except RuntimeUnavailableError:
        return NO_COMPILER
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition("\n")[0]


@contextlib.contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, where they would end this process at once, and leave the compiler behind."""

    def end(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@functools.cache
def instruction_set() -> str:
    described = platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        described += "\n" + next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return described


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
