"""Dependencies point down: the contracts of pyproject.toml hold."""

import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]


def test_contracts_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert status == 0, capsys.readouterr().out


def test_importing_bow_imports_no_library_of_an_adapter() -> None:
    code = "import sys, bow; bow.train, bow.sweep; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"hydra", "omegaconf", "wandb", "cupy", "sklearn", "optuna", "bow.integrations"} & set(
        done.stdout.split()
    )
