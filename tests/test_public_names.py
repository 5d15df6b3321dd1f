import inspect
import subprocess
import sys
import types

import pytest

import bow

METHODS = (types.FunctionType, classmethod, property)

pytestmark = pytest.mark.quick


def test_every_public_name_is_there_and_documented() -> None:
    for name in bow.__all__:
        public = getattr(bow, name)
        assert public.__doc__, name
        own = vars(public) if isinstance(public, type) else {}
        methods = {key for key, value in own.items() if key[0] != "_" and isinstance(value, METHODS)}
        assert [key for key in methods if not inspect.getdoc(getattr(public, key))] == [], name


def test_importing_bow_imports_nothing_that_takes_long() -> None:
    names = ("torch", "numpy", "hydra", "yaml", "rich", "matplotlib", "jinja2", "wandb", "sklearn", "optuna")
    program = f"import bow, sys; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_packages_are_there_where_only_bow_is_imported() -> None:
    program = "import bow; print(bow.members.StopRule, bow.observe.WandbLogger, bow.sync.Synchroniser)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_dir_shows_what_is_imported_lazily() -> None:
    assert {"train", "Replicas", "SMA"} <= set(dir(bow))
