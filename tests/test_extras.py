"""Each extra alone, in its own environment: its feature works, and no package of other extras is installed."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADDRESS = re.compile(r"No matching distribution|Could not find a version|Temporary failure|NewConnectionError")

# By extra: a description, and a program that needs it. The programs of integrations are their doctests.
DOCTEST = """
import doctest, importlib, pathlib
folder = {{"getfixture": lambda name: pathlib.Path.cwd()}}
found = doctest.testmod(importlib.import_module({!r}), extraglobs=folder, optionflags=doctest.ELLIPSIS)
assert found.attempted and not found.failed
"""
COMMANDS = """
import bow.cli
from benchmarks.models import let_torchvision_be_imported
let_torchvision_be_imported()
for line in {}: assert bow.cli.main(line.split()) == 0, line
"""
LOGGED = "train(run=bow.Run('logged', progress=False, loggers=[bow.observe.{}]))"
TRAINED_ON_RAY = """
result = bow.sweep(
    functools.partial(nn.Linear, 8, 2), data, loss, variants=bow.grid(seed=range(2)), engine="eager",
    cluster="ray", run=bow.Run("sweep", progress=False),
)
assert len(result.members) == 2
"""
EXTRAS = {
    "": (set(), DOCTEST.format("bow.integrations.sklearn")),
    "tensorboard": ({"tensorboard"}, LOGGED.format("TensorBoardLogger()")),
    "optuna": ({"optuna"}, DOCTEST.format("bow.integrations.optuna")),
    "ray": ({"ray"}, TRAINED_ON_RAY),
    "mlflow": ({"mlflow"}, LOGGED.format("MlflowLogger(uri='sqlite:///mlflow.db')")),
    "lightning": ({"lightning"}, DOCTEST.format("bow.integrations.lightning")),
    "models": (
        {"timm", "torchvision", "transformers"},
        COMMANDS.format(
            [
                f"train model={model} data={data} steps=1 learners=1 engine=eager run.progress=false"
                for model, data in [
                    ("timm:mobilenetv3_small_050", "synthetic"),
                    ("torchvision:squeezenet1_1", "synthetic"),
                    ("hf:gpt2 model.n_layer=1 model.n_embd=16 model.n_head=2", "text"),
                ]
            ]
        ),
    ),
    "partition": (
        {"pymetis"},
        COMMANDS.format(["plan compare network=nmt size=tiny topology=k80_node methods=gpu,metis"]),
    ),
}
# Extras for a GPU, a whole benchmark, or the environment of the tests.
ELSEWHERE = {"cu12", "cu13", "peers", "docs", "dev"}
BROUGHT = set.union(*(brought for brought, _ in EXTRAS.values()))

PROGRAM = """
import functools, sys
import torch
from torch import nn
import bow

def loaded():
    return {{name.partition(".")[0] for name in sys.modules}} & {others!r}

data, loss = (torch.randn(32, 8), torch.arange(32) % 2), nn.functional.cross_entropy
train = functools.partial(bow.train, nn.Linear(8, 2), data, loss, engine="eager", validation=data)
train(run=bow.Run("plain", progress=False))
assert not loaded(), loaded()
{example}
assert loaded() == {brought!r}, loaded()
"""


def needed(requirements: list[str], extra: str = "") -> Iterator[importlib.metadata.Distribution]:
    """Return the installed distributions that these requirements resolve to."""
    seen, left = set(), [Requirement(each) for each in requirements]
    while left:
        requirement = left.pop()
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
            continue
        seen.add(requirement.name)
        yield (found := importlib.metadata.distribution(requirement.name))
        left += [Requirement(each) for each in found.requires or ()]


def environment(folder: Path) -> Path:
    """Return the interpreter of an environment with bow and its dependencies only, as links to the installed ones."""
    (others := folder / "others").mkdir(parents=True)
    for distribution in needed(PROJECT["dependencies"]):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (others / top).exists() and not top.endswith(".pth"):
                (others / top).symlink_to(Path(str(distribution.locate_file(top))))
    venv.create(folder / "environment", symlinks=True)
    (site,) = (folder / "environment").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{others}\n{ROOT}\n")  # read by pip, which does not write to these folders
    return folder / "environment/bin/python"


@pytest.mark.nightly
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_works_alone(extra: str, tmp_path: Path) -> None:
    python, (brought, example) = environment(tmp_path), EXTRAS[extra]
    if extra:  # as users install it, except for torch, of which there is one
        (tmp_path / "constraints").write_text(f"torch=={importlib.metadata.version('torch').partition('+')[0]}\n")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "-c", tmp_path / "constraints"]
        install += PROJECT["optional-dependencies"][extra]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if ADDRESS.search(done.stderr):
            pytest.skip(done.stderr.splitlines()[-1])
        assert done.returncode == 0, done.stderr
    program = PROGRAM.format(others=BROUGHT, brought=brought, example=example)
    done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_extra_is_tried_or_named() -> None:
    assert {*EXTRAS, *ELSEWHERE} - {""} == set(PROJECT["optional-dependencies"])
