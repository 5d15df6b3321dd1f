from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from tests.kernels.emulated import EmulatedKernels, Emulation, compile_emulation, fake_cupy

if TYPE_CHECKING:
    from bow.devices.kernels import Kernels


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Emulation:
    return compile_emulation(tmp_path_factory.mktemp("emulation"))


@pytest.fixture
def emulation(compiled: Emulation, monkeypatch: pytest.MonkeyPatch) -> Emulation:
    """The kernels compiled for the CPU, and a `cupy` that runs them."""
    compiled.launches.clear()
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(compiled))
    return compiled


@pytest.fixture
def emulated(emulation: Emulation) -> EmulatedKernels:
    return EmulatedKernels(torch.device("cpu"))


@pytest.fixture(params=["torch", "emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Every implementation; the last is the real one, on a machine with a GPU and CuPy."""
    from bow.devices.cupy_kernels import CupyKernels
    from bow.devices.kernels import Kernels

    if request.param == "torch":
        return Kernels()
    if request.param == "emulated":
        return request.getfixturevalue("emulated")
    pytest.importorskip("cupy", reason="needs CuPy")
    return CupyKernels(torch.device("cuda", 0))


@pytest.fixture
def device(kernels: Kernels) -> torch.device:
    """Where tensors must be for these kernels."""
    from bow.devices.cupy_kernels import CupyKernels

    on_gpu = isinstance(kernels, CupyKernels) and not isinstance(kernels, EmulatedKernels)
    return torch.device("cuda", 0) if on_gpu else torch.device("cpu")
