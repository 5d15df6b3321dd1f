"""What `CupyKernels` asks of CuPy, and what is used where there is none."""

from __future__ import annotations

import importlib.metadata
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bow.devices import cupy_kernels
from bow.devices import kernels as module
from bow.devices.kernels import Kernels, kernels_for
from bow.errors import MissingDependencyError, RuntimeUnavailableError
from tests.kernels.emulated import EmulatedKernels, Emulation, RawModule, Stream, signatures
from tests.kernels.memory import left_by_task

CPU = torch.device("cpu")
NUMBERS = torch.tensor([0.1, 0.9, 0.01, 0.0, 0.3, 0.5], dtype=torch.float64)


@pytest.fixture(autouse=True)
def _forget_attempts() -> None:
    module._on_cuda.cache_clear()


def launch_everything(kernels: EmulatedKernels, dtype: torch.dtype) -> None:
    w, m, g, c = (torch.randn(3, 20, dtype=dtype) for _ in range(4))
    z, z_prev, total = torch.randn(3, 20, dtype=dtype)
    finite = torch.ones(3, dtype=torch.promote_types(dtype, torch.float32))
    kernels.sma_contribute(w, z, c, total, 0.3)
    kernels.sma_apply(w, c, z, z_prev, total, 0.5)
    kernels.sma_center(w, z, z_prev, NUMBERS)
    task = left_by_task(True, dtype, CPU)
    kernels.sgd_row(w[1], m[1], g[1], z, z_prev, task, torch.empty_like(task), NUMBERS, True)
    kernels.sgd_round(w, m, g, z, z_prev, finite, NUMBERS, False)
    numbers = torch.ones(8, dtype=torch.float64)
    kernels.adam_round(w, m, g.clone(), g, z, z_prev, finite, finite.clone(), numbers, False)
    kernels.gather(w, torch.tensor([2, 0]), c[:2])


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", cupy_kernels.SUFFIXES, ids=cupy_kernels.SUFFIXES.values())
def test_every_kernel_gets_the_arguments_of_its_signature(
    emulated: EmulatedKernels, emulation: Emulation, dtype: torch.dtype
) -> None:
    launch_everything(emulated, dtype)  # the emulation refuses arguments of another number, size or kind
    suffix = cupy_kernels.SUFFIXES[dtype]
    launched = [launch.kernel for launch in emulation.launches]
    assert launched == [f"{operation}_{suffix}" for operation in cupy_kernels.OPERATIONS] + ["gather"]


def test_no_kernel_is_left_out() -> None:
    names = {f"{operation}_{s}" for operation in cupy_kernels.OPERATIONS for s in cupy_kernels.SUFFIXES.values()}
    assert set(signatures()) == {*names, "gather"}


@pytest.mark.parametrize("wrong", [np.float32(0.3), True, 3])
def test_arguments_of_another_size_are_noticed(emulated: EmulatedKernels, emulation: Emulation, wrong: Any) -> None:
    with pytest.raises(AssertionError, match="alpha"):
        emulation.launch("sma_contribute_f32", (1,), (256,), (0, 16, 0, 0, 16, 0, wrong, 0, 0))


def test_missing_arguments_are_noticed(emulated: EmulatedKernels, emulation: Emulation) -> None:
    with pytest.raises(AssertionError, match="9 arguments, got 2"):
        emulation.launch("sma_contribute_f32", (1,), (256,), (0, 16))


def test_misaligned_access_is_noticed(emulation: Emulation) -> None:
    row = torch.zeros(64)
    addresses = (row.data_ptr() + 2, 16, row.data_ptr(), row.data_ptr(), 16, row.data_ptr())
    with pytest.raises(AssertionError, match="multiple of the size"):
        emulation.launch("sma_contribute_f32", (1,), (256,), (*addresses, 0.3, 1, 16))


def test_launches_fill_the_device_and_no_more(emulated: EmulatedKernels, emulation: Emulation) -> None:
    for columns, blocks in [(1, 1), (1024, 1), (1025, 2), (16 * 1024, 16), (16 * 1024 + 1, 16)]:
        w, z = torch.zeros(1, columns), torch.zeros(3, columns)
        emulated.sma_center(w, z[0], z[1], NUMBERS)
        assert (emulation.launches[-1].blocks, emulation.launches[-1].threads) == (blocks, 256)


def test_kernels_run_on_the_current_stream(emulated: EmulatedKernels, emulation: Emulation) -> None:
    for handle in (7, 9, 7):
        emulated.handle = handle
        emulated.sma_center(torch.zeros(1, 4), torch.zeros(4), torch.zeros(4), NUMBERS)
    streams = [launch.stream for launch in emulation.launches]
    assert [stream.ptr for stream in streams] == [7, 9, 7]
    assert streams[0] is streams[2]


def test_streams_of_cupy_13(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(Stream=object, ExternalStream=lambda ptr, device_id: Stream(ptr))
    monkeypatch.setattr(sys.modules["cupy"], "cuda", cuda)
    EmulatedKernels(CPU).sma_center(torch.zeros(1, 4), torch.zeros(4), torch.zeros(4), NUMBERS)
    assert emulation.launches[-1].stream.ptr == EmulatedKernels.handle


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_other_dtypes_go_to_pytorch(emulated: EmulatedKernels, emulation: Emulation, dtype: torch.dtype) -> None:
    if dtype.is_floating_point:
        launch_everything(emulated, dtype)
    emulated.gather(torch.zeros(5, 4, dtype=dtype), torch.tensor([1]), torch.zeros(1, 4, dtype=dtype))
    assert {launch.kernel for launch in emulation.launches} == {"gather"}


def test_gather_with_gaps_goes_to_pytorch(emulated: EmulatedKernels, emulation: Emulation) -> None:
    source, out = torch.arange(30).view(5, 6)[:, ::2], torch.zeros(2, 3, dtype=torch.int64)
    emulated.gather(source, torch.tensor([4, 1]), out)
    assert torch.equal(out, source[[4, 1]])
    assert not emulation.launches


def test_rows_with_gaps_and_mixed_dtypes_are_refused(emulated: EmulatedKernels) -> None:
    z, z_prev = torch.zeros(2, 8)
    with pytest.raises(AssertionError, match="without gaps"):
        emulated.sma_center(torch.zeros(2, 16)[:, ::2], z, z_prev, NUMBERS)
    with pytest.raises(AssertionError, match="float64, expected"):
        emulated.sma_center(torch.zeros(2, 8), z.double(), z_prev, NUMBERS)


def test_everything_is_compiled_before_the_first_launch(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[RawModule] = []

    def raw_module(*, code: str, options: tuple[str, ...]) -> RawModule:
        modules.append(RawModule(emulation, code, options))
        return modules[-1]

    monkeypatch.setattr(sys.modules["cupy"], "RawModule", raw_module)
    kernels = EmulatedKernels(CPU)
    launch_everything(kernels, torch.float32)
    (made,) = modules
    assert made.asked_for == [*signatures()]
    assert "-std=c++17" in made.options


def test_a_change_of_a_header_is_a_change_of_the_text() -> None:
    code = cupy_kernels.source()
    assert "#include" not in code
    assert "struct bfloat16" in code
    assert cupy_kernels.compile_options(code) != cupy_kernels.compile_options(code + " ")


def test_pytorch_kernels_on_the_cpu() -> None:
    kernels = kernels_for(CPU)
    assert (kernels.name, kernels.reason) == ("torch", None)


@pytest.fixture
def launched(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`CupyKernels` need no GPU; whose kernels are launched once."""
    for name in ("_num_multiprocessors", "_on_device"):
        monkeypatch.setattr(cupy_kernels.CupyKernels, name, getattr(EmulatedKernels, name))
    names: list[str] = []
    monkeypatch.setattr(cupy_kernels.CupyKernels, "launch_once", lambda self: names.append(self.name))
    return names


def test_cupy_kernels_on_cuda(launched: list[str]) -> None:
    kernels = kernels_for(torch.device("cuda", 0))
    assert (kernels.name, kernels.reason) == ("cupy", None)
    assert kernels_for(torch.device("cuda", 0)) is kernels
    assert launched == ["cupy"]


def fallback_reason() -> str:
    kernels = kernels_for(torch.device("cuda", 0))
    assert type(kernels) is Kernels
    assert kernels.reason is not None
    assert "\n" not in kernels.reason
    return kernels.reason


def test_without_cupy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert fallback_reason() == "the CUDA kernels need CuPy; pip install 'bow-trainer[cu13]'"
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(MissingDependencyError, match="cu12"):
        EmulatedKernels(CPU)


def test_cupy_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "cupy":
                raise ImportError("libcuda.so.1: cannot open shared object file\nand more")

    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert "CuPy cannot be imported (libcuda.so.1: cannot open shared object file); pip" in fallback_reason()


@pytest.mark.usefixtures("launched")
def test_kernels_that_do_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(sys.modules["cupy"], "RawModule", fails)
    assert "no space left on device" in fallback_reason()


def test_two_versions_of_nccl_are_refused(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.28")
    with pytest.raises(RuntimeUnavailableError, match="nvidia-nccl-cu12 and nvidia-nccl-cu13 are both installed"):
        EmulatedKernels(CPU)
