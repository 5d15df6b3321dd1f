import runpy
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.py") if not path.stem.endswith("_pytorch"))
SMALL = ["epochs=1", "batch_size=8", "data.limit=16"]


@pytest.fixture(autouse=True)
def _in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *overrides])
    runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")


def test_every_recipe_of_the_configuration_has_a_script_and_a_twin() -> None:
    configured = {path.stem for path in (RECIPES.parent / "conf/recipe").glob("*.yaml")} - {"none"}
    assert configured == set(NAMES)
    assert all((RECIPES / f"{name}_pytorch.py").exists() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_recipe_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, [*SMALL, "learners=2", "run.progress=false"], monkeypatch)
    assert capsys.readouterr().out.startswith("accuracy ")
    assert len(list(Path("runs").iterdir())) == 1


@pytest.mark.parametrize("name", NAMES)
def test_twin_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(f"{name}_pytorch", SMALL, monkeypatch)
    assert capsys.readouterr().out.startswith("epoch 1  accuracy ")
    assert not list(Path().iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_twin_is_plain_pytorch_and_short(name: str) -> None:
    lines = (RECIPES / f"{name}_pytorch.py").read_text().splitlines()
    assert [line for line in lines if "bow" in line and "import" in line] == ["from bow import recipe"]
    assert len(lines) <= 45
