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


@pytest.mark.parametrize("used", ["", "from bow.cli import main; main(['--help'])"], ids=["import bow", "bow --help"])
def test_importing_bow_imports_nothing_that_takes_long(used: str) -> None:
    names = ("torch", "numpy", "hydra", "omegaconf", "yaml", "rich", "matplotlib", "jinja2")
    names += ("wandb", "sklearn", "optuna")
    program = f"""
import sys, time
began = time.process_time()
import bow
{used}
print(time.process_time() - began, [name for name in {names} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds, loaded = done.stdout.splitlines()[-1].split(" ", 1)
    assert loaded == "[]"
    assert float(seconds) < 0.5  # of the processor, on any machine: 0.01 and 0.05 on cores of 2026


def test_the_name_of_what_needs_none_says_where_it_is() -> None:
    with pytest.raises(AttributeError, match=r"result.best, and best.safetensors"):
        _ = bow.BestCheckpoint


def test_dir_shows_what_is_imported_lazily() -> None:
    assert {"train", "Replicas", "SMA"} <= set(dir(bow))
