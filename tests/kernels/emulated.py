"""The kernels of `kernels/`, compiled for the CPU, and a `cupy` that runs them."""

from __future__ import annotations

import contextlib
import ctypes
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from bow.devices.cupy_kernels import CupyKernels, source

FOLDER = Path(__file__).parents[2] / "kernels"
HEADER = Path(__file__).with_name("emulation.h")
SOURCES = ("sma.cu", "gather.cu")
ELEMENT_TYPES = {"f32": "float", "f64": "double", "bf16": "bfloat16"}
# -O0: compiling takes longer than all tests of the kernels. The kernels read and write elements as packs.
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-fno-strict-aliasing", "-fsanitize=alignment", "-w")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel."""

    type: str
    name: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """What an argument must be as a NumPy scalar; addresses are 64-bit integers."""
        if self.type.endswith("*") or self.type == "long long":
            return np.dtype(np.int64)
        return np.dtype({"double": np.float64, "float": np.float32, "int": np.int32}[self.type])


def signatures() -> dict[str, tuple[Parameter, ...]]:
    """The kernels' parameters, read from the text of the sources."""
    found = {}
    for path in map(FOLDER.joinpath, SOURCES):
        text = re.sub(r"//.*|\\$", "", path.read_text(), flags=re.MULTILINE)
        for name, listed in re.findall(
            r'extern "C" __global__ void __launch_bounds__\(256(?:, 2)?\)\s+(\w+#*\w*)\(([^)]*)\)', text
        ):
            for suffix, element in ELEMENT_TYPES.items() if "##" in name else [("", "")]:
                parameters = re.sub(r"\bT\b", element, " ".join(listed.split())).replace("__restrict__ ", "")
                found[name.replace("##suffix", suffix)] = tuple(map(_parameter, parameters.split(", ")))
    return found


def _parameter(declared: str) -> Parameter:
    type, name = re.fullmatch(r"(.*[ *])(\w+)", declared).groups()
    return Parameter(type.strip(), name)


@dataclass(frozen=True)
class Launch:
    """How a kernel was started."""

    kernel: str
    blocks: int
    threads: int
    stream: Stream


@dataclass
class Emulation:
    """The compiled kernels.

    Attributes:
        library: with a `launch_NAME` for every kernel.
        signatures: of the kernels.
        launches: those that came through `cupy`.
        shape: (blocks, threads) of every launch instead of those that are asked for.
        backwards: the last thread runs first.
    """

    library: ctypes.CDLL
    signatures: dict[str, tuple[Parameter, ...]]
    launches: list[Launch] = field(default_factory=list)
    shape: tuple[int, int] | None = None
    backwards: bool = False

    def launch(self, name: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        """As `cuLaunchKernel`, but that arguments which do not fit the kernel's parameters are an error."""
        parameters = self.signatures[name]
        assert len(arguments) == len(parameters), f"{name} takes {len(parameters)} arguments, got {len(arguments)}"
        scalars = [_as_cupy_packs_it(argument) for argument in arguments]
        for scalar, parameter in zip(scalars, parameters, strict=True):
            assert scalar.dtype == parameter.dtype, f"{name}: {parameter} was given {scalar!r}"
        cells = [np.array([scalar]) for scalar in scalars]
        addresses = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        blocks, threads = self.shape or (grid[0], block[0])
        status = self.library[f"launch_{name}"](blocks, threads, int(self.backwards), addresses)
        assert status != 2, f"{name}: an address is no multiple of the size that is read or written there"
        if status == 1:
            raise RuntimeError(f"{name}: unspecified launch failure")  # what CUDA says of a trap

    def narrow(self, x: np.float32) -> int:
        """The bits of a number as bfloat16."""
        self.library.narrow_bits.argtypes = [ctypes.c_float]
        return self.library.narrow_bits(x) & 0xFFFF

    @contextlib.contextmanager
    def configured(self, shape: tuple[int, int] | None = None, *, backwards: bool = False) -> Iterator[None]:
        """Other launches than those asked for, for a while."""
        self.shape, self.backwards = shape, backwards
        try:
            yield
        finally:
            self.shape, self.backwards = None, False


def compile_emulation(folder: Path) -> Emulation:
    """Compile with g++ the very text that the adapter hands to CuPy."""
    kernels = signatures()
    lines = [f'#include "{HEADER}"', source()]
    for name, parameters in kernels.items():
        listed = (f"BOW_ARGUMENT({i}, {parameter.type})" for i, parameter in enumerate(parameters))
        lines.append(f"BOW_LAUNCH({name}, {', '.join(listed)})")
    lines.append('extern "C" unsigned short narrow_bits(float x) { return narrow<bfloat16>(x).bits; }')
    text, compiled, library = folder / "emulated.cpp", folder / "emulated.o", folder / "emulated.so"
    text.write_text("\n".join(lines) + "\n")
    subprocess.run(["g++", *FLAGS, "-c", text, "-o", compiled], check=True)
    # Linked without the sanitizer: its only handler is the one of the header.
    subprocess.run(["g++", "-shared", compiled, "-o", library], check=True)
    return Emulation(ctypes.CDLL(str(library)), kernels)


def _as_cupy_packs_it(argument: Any) -> np.generic:
    """How CuPy turns an argument of a launch into memory: by the type that it has, not by the kernel's."""
    if isinstance(argument, np.generic):
        return argument
    if type(argument) is bool:
        return np.bool_(argument)
    if type(argument) is int:
        return np.int64(argument)
    if type(argument) is float:
        return np.float64(argument)
    raise TypeError(f"Unsupported type {type(argument)}")


class Stream:
    """`cupy.cuda.Stream`."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    @classmethod
    def from_external(cls, stream: Any) -> Stream:
        version, ptr = stream.__cuda_stream__()
        assert version == 0
        return cls(ptr)


class RawModule:
    """`cupy.RawModule`, whose kernels run on the CPU."""

    def __init__(self, emulation: Emulation, code: str, options: tuple[str, ...]) -> None:
        assert code == source()
        assert isinstance(options, tuple)
        self.emulation, self.code, self.options = emulation, code, options
        self.compiled = False
        self.asked_for: list[str] = []

    def compile(self) -> None:
        self.compiled = True

    def get_function(self, name: str) -> Any:
        assert self.compiled
        assert name in self.emulation.signatures
        self.asked_for.append(name)

        def kernel(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, stream: Stream) -> None:
            assert all(type(size) is int and size > 0 for size in (*grid, *block))
            self.emulation.launches.append(Launch(name, *grid, *block, stream))
            self.emulation.launch(name, grid, block, args)

        return kernel


def fake_cupy(emulation: Emulation) -> ModuleType:
    """A module `cupy` that runs the compiled kernels."""
    module = ModuleType("cupy")
    module.RawModule = lambda *, code, options: RawModule(emulation, code, options)
    module.cuda = SimpleNamespace(Stream=Stream)
    return module


class EmulatedKernels(CupyKernels):
    """`CupyKernels` on the CPU, on a device of two multiprocessors whose current stream is `handle`."""

    handle = 7

    def _num_multiprocessors(self) -> int:
        return 2

    def _stream_handle(self) -> int:
        return self.handle

    def _on_device(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
