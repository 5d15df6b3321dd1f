"""The kernels compile for every supported architecture, with both of NVIDIA's compilers, and fit the registers."""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bow.devices.cupy_kernels import compile_options, source
from tests.kernels.emulated import FOLDER, SOURCES, signatures

for_every_architecture = pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])


@pytest.mark.sample(4, 2)
@for_every_architecture
def test_nvcc_compiles_without_spilling(architecture: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    options = ["-cubin", f"-arch={architecture}", "-std=c++17", "-Werror", "all-warnings", "-Xptxas", "-v"]
    sources = [str(FOLDER / name) for name in SOURCES]
    done = subprocess.run(
        [nvcc, *options, "-odir", tmp_path, *sources], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    check_spills(done)


def check_spills(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert len(spills) == len(signatures())
    assert set(spills) == {("0", "0", "0")}, done.stderr


@pytest.mark.nightly
@for_every_architecture
def test_nvrtc_compiles_what_cupy_is_given(architecture: str, nvrtc: ctypes.CDLL) -> None:
    cubin = compile_with_nvrtc(nvrtc, source(), architecture)
    assert cubin.startswith(b"\x7fELF")
    for name in signatures():
        assert f".text.{name}\0".encode() in cubin


def test_nvrtc_is_told_what_is_wrong(nvrtc: ctypes.CDLL) -> None:
    with pytest.raises(SyntaxError, match="nowhere"):
        compile_with_nvrtc(nvrtc, source() + "int x = nowhere;", "sm_90")


def test_kernels_move_16_bytes_at_a_time(ptx: str) -> None:
    for name in signatures():
        body = ptx[ptx.index(f".entry {name}(") :].partition("\n}")[0]
        assert re.search(r"ld\.global(\.nc)?\.v[24]\.[a-z]*(64|32)", body), name
        assert re.search(r"st\.global\.v[24]\.[a-z]*(64|32)", body), name


def test_what_cupy_is_given_does_not_spill(ptx: str, tmp_path: Path) -> None:
    """Of PTX for an H100, which is what CuPy loads."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("needs ptxas")
    (tmp_path / "kernels.ptx").write_text(ptx)
    command = [ptxas, "-arch=sm_90", "-v", "kernels.ptx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    if "Unsupported .version" in done.stderr:
        pytest.skip("ptxas is older than nvrtc")
    check_spills(done)


@pytest.fixture(scope="module")
def ptx(nvrtc: ctypes.CDLL) -> str:
    """For the virtual architecture of an H100."""
    return compile_with_nvrtc(nvrtc, source(), "compute_90").decode().rstrip("\0")


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """The compiler that CuPy uses, from NVIDIA's wheel."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvrtc") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the package nvidia-cuda-nvrtc")
    # What it loads by name only: the wheel of CUDA 13.0 does not look beside itself.
    (builtins,) = (file for file in files if re.fullmatch(r"libnvrtc-builtins\.so\.[\d.]+", file.name))
    ctypes.CDLL(str(builtins.locate()))
    (library,) = (file for file in files if re.fullmatch(r"libnvrtc\.so\.\d+", file.name))
    return ctypes.CDLL(str(library.locate()))


def compile_with_nvrtc(nvrtc: ctypes.CDLL, code: str, architecture: str) -> bytes:
    """A cubin, or the PTX of a virtual architecture, compiled with the options that CuPy 13 and 14 would give."""
    options = [*compile_options(code), "-ftz=true", f"-arch={architecture}", "--device-as-default-execution-space"]
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None) == 0
    try:
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), encoded) != 0:
            raise SyntaxError(_result(nvrtc, program, "ProgramLog").decode().rstrip("\0"))
        return _result(nvrtc, program, "CUBIN" if architecture.startswith("sm_") else "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _result(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, text) == 0
    return text.raw
