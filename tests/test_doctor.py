"""What `bow doctor` reports about a machine."""

import importlib.metadata
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bow import doctor
from bow.devices.cupy_kernels import library_clash
from bow.doctor import check_engines, find_libraries, inspect_machine


def test_machine_is_described() -> None:
    found = inspect_machine()
    assert found.cores >= 1
    assert 0 < found.available_bytes <= found.memory_bytes
    assert torch.__version__ in found.torch
    assert len(found.gpus) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)


def test_driver_without_a_usable_gpu_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "version"
    driver.touch()
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", driver)
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
    from bow.engines import ENGINES

    assert {engine.name for engine in check_engines(inspect_machine())} == {*ENGINES}


def test_compiled_engine_with_a_compiler() -> None:
    found = replace(inspect_machine(), compiler="g++ 12")
    assert check_engines(found)[1].note.endswith("compiled")


def test_a_runtime_that_is_not_built_yet_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(inspect_machine(), compiler="g++ 12", gpus=())
    for built in (True, False):
        monkeypatch.setattr(doctor, "is_built", lambda built=built: built)
        (graph,) = (engine for engine in check_engines(found) if engine.name == "graph")
        assert ("python -m bow.runtime" in graph.note) is not built


PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_required_libraries_are_the_dependencies_of_the_package() -> None:
    names = {requirement.split(">")[0] for requirement in PROJECT["dependencies"]}
    assert names == set(doctor.REQUIRED)


def test_versions_are_the_installed_ones() -> None:
    versions = {library.name: library.version for library in find_libraries()}
    assert versions["torch"] == importlib.metadata.version("torch")


def test_missing_library_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.OPTIONAL, "no-such-library", "nothing")
    (missing,) = (library for library in find_libraries() if library.name == "no-such-library")
    assert missing.version is None
    assert missing.remedy == "pip install no-such-library"


def test_two_versions_of_nccl_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"nvidia-nccl-cu13": "2.27"}

    def version(name: str) -> str:
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert library_clash() is None
    there["nvidia-nccl-cu12"] = "2.27"
    assert "nvidia-nccl-cu12 and nvidia-nccl-cu13" in str(library_clash())
