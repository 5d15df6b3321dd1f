"""The compiled simulator: built from `kernels/planner/` when it is first used, and called by way of ctypes."""

import ctypes
import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bow.compiling import built, compile_cpp, source_hash
from bow.errors import RuntimeUnavailableError
from bow.files import Expendable

LIBRARY = "planner.so"
MAIN_SOURCE = "simulator.cpp"
WHAT = "the compiled simulator"

# No fused multiply and add: times are to be equal to the nanosecond to those that Python works out.
FLAGS = ("-shared", "-fPIC", "-std=c++20", "-O3", "-march=native", "-ffp-contract=off")

UPDATE_NS = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
"""How long an update takes, by bytes and device."""

_OBJECT, _INT, _LONG, _DOUBLE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double
_INTS, _LONGS, _DOUBLES, _BYTES = (
    np.ctypeslib.ndpointer(dtype, flags="C_CONTIGUOUS") for dtype in (np.int32, np.int64, np.float64, np.uint8)
)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "builder": (_OBJECT, (_INT, _LONGS, _INT, _LONGS, _DOUBLES, _INTS, _INTS, _INT, _LONG, _INT, _DOUBLE)),
    "add_tensor": (None, (_OBJECT, _INT, _INT, _LONG, _INT)),
    "add_group": (None, (_OBJECT, _INT, _INTS, _LONGS, _INT)),
    "add_operator": (None, (_OBJECT, _INT, _INTS, _INT, _INTS, _INT, _INTS, _INT)),
    "simulator": (_OBJECT, (_OBJECT, UPDATE_NS, _INT)),
    "delete": (None, (_OBJECT,)),
    "add_boxes": (_INT, (_OBJECT, _INT, _INT, _LONGS, _BYTES)),
    "add_part": (_INT, (_OBJECT, _INT, _LONGS)),
    "add_tiling": (
        _INT,
        (_OBJECT, _INT, _INT, _INTS, _INT, _INTS, _LONGS, _LONGS, _INT, _INTS, _LONGS, _INT, _INTS),
    ),
    "stage": (None, (_OBJECT, _INT, _INTS, _INTS, _INTS, _INTS, _LONGS, _LONGS)),
    "build": (_INT, (_OBJECT, _LONGS)),
    "propose": (_INT, (_OBJECT, _LONG, _LONGS)),
    "accept": (None, (_OBJECT,)),
    "undo": (None, (_OBJECT,)),
    "makespan": (_LONG, (_OBJECT,)),
    "num_looked_at": (_LONG, (_OBJECT,)),
    "num_tasks": (_INT, (_OBJECT,)),
    "tasks": (None, (_OBJECT, _LONGS)),
    "peaks": (None, (_OBJECT, _LONGS)),
}


def library() -> ctypes.CDLL:
    """The library, its functions without the prefix `planner_` in their names."""
    found = _attempt()
    if isinstance(found, RuntimeUnavailableError):
        raise RuntimeUnavailableError(*found.args)  # a new one: an error keeps the frames that it went through
    return found


@functools.cache
def _attempt() -> ctypes.CDLL | RuntimeUnavailableError:
    """One attempt a process: what failed once would fail again."""
    try:
        return _load()
    except RuntimeUnavailableError as error:
        return error


def _load() -> ctypes.CDLL:
    folder = Path(next(iter(importlib.import_module("bow.kernels").__path__))) / "planner"
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".h", ".cpp"))
    key = source_hash(*FLAGS, *(path.name + path.read_text(encoding="utf-8") for path in sources))

    def make(target: Path) -> None:
        print(
            "bow: building the planner's simulator, once on this machine; it takes some seconds",
            file=Expendable(sys.stderr),
        )
        compile_cpp(WHAT, [*FLAGS, str(folder / MAIN_SOURCE), "-o", str(target)])

    path = built(f"planner-{key}", LIBRARY, make)
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeUnavailableError(
            f"{WHAT} cannot be loaded ({error}); delete {path.parent} and try again"
        ) from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, f"planner_{name}")
        function.restype, function.argtypes = result, arguments
        setattr(loaded, name, function)
    return loaded
