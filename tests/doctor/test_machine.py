from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bow.doctor import check_engines, inspect_machine, machine


def test_machine_is_described() -> None:
    found = inspect_machine()
    assert found.cores >= 1
    assert 0 < found.available_bytes <= found.memory_bytes
    assert torch.__version__ in found.torch
    assert len(found.gpus) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)


def test_driver_without_a_usable_gpu_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "version"
    driver.touch()
    monkeypatch.setattr(machine, "NVIDIA_DRIVER", driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built for the CPU only" in str(inspect_machine().gpu_problem)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "update the driver" in str(inspect_machine().gpu_problem)


def test_missing_compiler_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = inspect_machine()
    assert found.compiler is None
    (fused,) = (engine for engine in check_engines(found) if engine.name == "fused")
    assert fused.runs
    assert "install g++" in fused.note


def test_every_engine_is_checked() -> None:
    from bow.engines import ENGINES, STREAM_ENGINES

    assert {engine.name for engine in check_engines(inspect_machine())} == {*ENGINES, *STREAM_ENGINES}


def test_compiled_engine_with_a_compiler() -> None:
    found = replace(inspect_machine(), compiler="g++ 12")
    assert check_engines(found)[1].note.endswith("compiled")
