"""Hardware and versions beside every number."""

import platform
import re
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import bow
from benchmarks.environment import find_commit, inspect_environment


def test_the_environment_names_hardware_and_versions_but_no_place_on_this_machine() -> None:
    environment = inspect_environment()
    assert environment.cores >= 1
    assert environment.memory_gib > 0.1
    assert environment.processor
    assert (environment.python, environment.torch) == (platform.python_version(), torch.__version__)
    assert environment.bow == bow.__version__
    assert str(Path.cwd()) not in str(asdict(environment))
    assert environment.processor in str(environment)


def test_a_commit_stands_beside_the_version_where_it_is_known() -> None:
    environment = replace(inspect_environment(), commit="0123abc (modified)")
    assert str(environment).endswith(f"bow {bow.__version__} at 0123abc (modified)")
    assert str(replace(environment, commit=None)).endswith(f"bow {bow.__version__}")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package in a repository of its own."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
    try:
        for arguments in (["init"], ["add", "."], [*me, "commit", "--message", "first"]):
            subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs git")
    return package


def test_a_checkout_names_its_commit_and_whether_the_package_was_modified(checkout: Path) -> None:
    commit = find_commit(checkout)
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    (checkout / "__init__.py").write_text("changed = True")
    assert find_commit(checkout) == f"{commit} (modified)"


def test_a_package_that_is_not_of_the_checkout_has_no_commit(checkout: Path) -> None:
    installed = checkout.parent / "site-packages"
    installed.mkdir()
    (installed / "__init__.py").write_text("")
    assert find_commit(installed) is None


def test_without_git_there_is_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_commit(checkout) is None
