import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from bow.doctor import find_libraries, libraries, problems

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_required_libraries_are_the_dependencies_of_the_package() -> None:
    names = {requirement.split(">")[0] for requirement in PROJECT["dependencies"]}
    assert names == set(libraries.REQUIRED)


def test_versions_are_the_installed_ones() -> None:
    versions = {library.name: library.version for library in find_libraries()}
    assert versions["torch"] == importlib.metadata.version("torch")


def test_missing_library_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(libraries.OPTIONAL, "no-such-library", "nothing")
    (missing,) = (library for library in find_libraries() if library.name == "no-such-library")
    assert missing.version is None
    assert missing.remedy == "pip install no-such-library"


def test_two_versions_of_nccl_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "version", lambda name: "2.27" if name == "nvidia-nccl-cu13" else None)
    assert problems() == []
    monkeypatch.setattr(libraries, "version", lambda name: "2.27")
    assert "nvidia-nccl-cu12 and nvidia-nccl-cu13" in problems()[0]
