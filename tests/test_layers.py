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


def test_importing_bow_imports_neither_hydra_nor_wandb() -> None:
    code = "import sys, bow; bow.train; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"hydra", "omegaconf", "wandb", "cupy"} & set(done.stdout.split())
