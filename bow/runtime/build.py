"""The native runtime's Python module: what it is compiled from and with, and what it depends on."""

import functools
import hashlib
import sysconfig
from pathlib import Path

import torch
from torch.utils import cpp_extension

from bow.compiling import compile_cpp, compiler_version, processor

FLAGS = ("-shared", "-fPIC", "-std=c++20", "-O3", "-march=native", "-DTORCH_API_INCLUDE_EXTENSION_H")


@functools.cache
def machine() -> str:
    """What compiled code depends on besides its source: processor, Python, torch, compiler."""
    return "\n".join(map(str, (processor(), sysconfig.get_config_var("SOABI"), torch.__version__, compiler_version())))


def content_hash(*parts: str) -> str:
    """A name for what these texts, compiled on this machine, become."""
    return hashlib.sha256("\0".join((machine(), *parts)).encode()).hexdigest()[:24]


def compile_extension(source: Path, target: Path, name: str) -> None:
    """Compile a C++ source into a Python module."""
    includes = [*cpp_extension.include_paths("cpu"), sysconfig.get_paths()["include"]]
    libraries = cpp_extension.library_paths("cpu")
    arguments = [
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
    compile_cpp("the native runtime", arguments)
