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


def test_importing_bow_finds_its_packages_and_imports_no_library_of_an_adapter() -> None:
    packages = "bow.members.StopRule, bow.observe.WandbLogger, bow.sync.Synchroniser"
    code = f"import sys, bow; {packages}, bow.train, bow.sweep; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    needed_by_some = {"hydra", "omegaconf", "wandb", "cupy", "sklearn", "optuna", "bow.integrations"}
    needed_by_some |= {"matplotlib", "tensorboard", "jinja2.environment"}
    assert not needed_by_some & set(done.stdout.split())
