import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils._pytree import tree_map

import bow.data

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.py") if not path.stem.endswith("_pytorch"))
FEW = 64


@pytest.fixture(autouse=True)
def _in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "text", "synthetic_images"):
        monkeypatch.setattr(bow.data, name, few(getattr(bow.data, name)))


def few(make: Callable[..., Any]) -> Callable[..., Any]:
    """The same data, of which only the first samples are left to train and to validate with."""

    def made(**settings: Any) -> Any:
        splits = make(**{**settings, "limit": FEW})
        return dataclasses.replace(splits, validation=tree_map(lambda part: part[:FEW], splits.validation))

    return made


def run(name: str) -> None:
    """Run a recipe for one epoch."""
    path = RECIPES / f"{name}.py"
    text, replaced = re.subn(r"^EPOCHS, BATCH_SIZE = .*", "EPOCHS, BATCH_SIZE = 1, 8", path.read_text(), flags=re.M)
    assert replaced == 1
    exec(compile(text, str(path), "exec"), {"__name__": "__main__"})


def test_every_recipe_of_the_configuration_has_a_script_and_a_twin() -> None:
    configured = {path.stem for path in (RECIPES.parent / "conf/recipe").glob("*.yaml")} - {"none"}
    assert configured == set(NAMES)
    assert all((RECIPES / f"{name}_pytorch.py").exists() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_recipe_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(name)
    assert re.search(r"^accuracy .* learners$", capsys.readouterr().out, re.M)
    assert len(list(Path("runs").iterdir())) == 1


@pytest.mark.parametrize("name", NAMES)
def test_twin_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(f"{name}_pytorch")
    assert capsys.readouterr().out.startswith("epoch 1  accuracy ")
    assert not list(Path().iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_twin_imports_nothing_of_bow_but_data(name: str) -> None:
    lines = (RECIPES / f"{name}_pytorch.py").read_text().splitlines()
    assert all(line.startswith("from bow.data import ") for line in lines if "bow" in line and "import" in line)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_training_differs_from_the_twin(name: str) -> None:
    """Data and model are the same text in both."""

    def before_training(file: str) -> list[str]:
        lines = (RECIPES / file).read_text().splitlines()
        return lines[next(i for i, line in enumerate(lines) if line.startswith("EPOCHS")) :]

    own, twin = before_training(f"{name}.py"), before_training(f"{name}_pytorch.py")
    same = difflib.SequenceMatcher(None, own, twin, autojunk=False).find_longest_match()
    assert (same.a, same.b) == (0, 0)
    assert own[same.size].startswith("result = bow.train(")


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_those_of_the_configuration(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = bow.recipe(name)
    made: dict[str, object] = {}
    monkeypatch.setattr(bow, "train", lambda *_, **settings: made.update(settings))
    path = RECIPES / f"{name}.py"
    text = path.read_text().partition("\nprint(")[0]
    exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    for setting in ("batch_size", "epochs", "learners", "clip_norm"):
        assert made.get(setting) == configured.get(setting)
    for setting in ("optimizer", "scheduler"):
        own, theirs = made.get(setting), configured.get(setting)
        assert (own is None) == (theirs is None)
        if own is not None:
            assert own.func is theirs.func
            defaults = {name: each.default for name, each in inspect.signature(own.func).parameters.items()}
            assert defaults | own.keywords == defaults | theirs.keywords
