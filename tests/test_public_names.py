import subprocess
import sys

import pytest

import bow

pytestmark = pytest.mark.quick


def test_every_public_name_is_there_and_documented() -> None:
    for name in bow.__all__:
        assert getattr(bow, name).__doc__, name


def test_importing_bow_imports_nothing_that_takes_long() -> None:
    names = ("torch", "numpy", "hydra", "yaml", "rich", "matplotlib", "jinja2", "wandb", "sklearn", "optuna")
    program = f"import bow, sys; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_dir_shows_what_is_imported_lazily() -> None:
    assert {"train", "Replicas", "SMA"} <= set(dir(bow))
