"""Models of timm, torchvision and Hugging Face by their names, in the shell and the configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from benchmarks.models import let_torchvision_be_imported
from bow.cli import main
from bow.cli.arguments import build
from bow.cli.composition import compose
from bow.errors import MissingDependencyError, SettingError
from bow.models import libraries

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

TINY = {
    "timm:test_resnet": ["data=digits"],
    "torchvision:shufflenet_v2_x0_5": ["data=synthetic"],
    "hf:gpt2": ["data=text", "model.n_layer=1", "model.n_embd=16", "model.n_head=2"],
    "hf:vit": [
        "data=synthetic", "model.image_size=32", "model.hidden_size=16", "model.num_hidden_layers=1",
        "model.num_attention_heads=2",
    ],
}  # fmt: skip
PACKAGES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}


@pytest.fixture(autouse=True)
def _importable() -> None:
    let_torchvision_be_imported()  # which the others import where it is there


class Mixer(nn.Sequential):
    def __init__(self, classes: int, channels: int, width: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64 * channels, width), nn.Linear(width, classes))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of two models."""

    def create_model(name: str, *, num_classes: int, in_chans: int, width: int = 4) -> nn.Module:
        return Mixer(num_classes, in_chans, width)

    names = ["mixer_s16", "resnet18"]
    made = SimpleNamespace(is_model=names.__contains__, list_models=lambda: names, create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", made)


def arguments(*words: str) -> dict[str, Any]:
    return build(compose(["recipe=none", "data=digits", "data.limit=64", *words]))


@pytest.mark.parametrize("model", TINY)
def test_the_shell_trains_a_model_by_its_name(model: str, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES[model.partition(":")[0]])
    own = [*TINY[model], "data.samples=64"] if "data=synthetic" in TINY[model] else [*TINY[model], "data.limit=64"]
    few = ["recipe=none", "steps=2", "learners=2", "engine=eager", "batch_size=8", "run.progress=false"]
    assert main(["train", f"model={model}", *own, *few, f"run={tmp_path / 'run'}"]) == 0
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert settings["model"]["name"] == model.partition(":")[2]
    assert main(["train", "--config", str(tmp_path / "run/config.yaml"), f"run={tmp_path / 'again'}"]) == 0
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "again")]
    assert models[0] == models[1]


def test_a_folder_of_hugging_face_is_a_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11).save_pretrained(tmp_path)
    made = libraries.hugging_face(str(tmp_path), classes=7)
    assert made(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 7)


def test_a_model_of_hugging_face_is_made_by_the_class_that_is_named() -> None:
    pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    made = libraries.hugging_face("bert", 5, head="AutoModelForTokenClassification", **small)
    assert made(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 5)
    with pytest.raises(SettingError, match=r"hf:t5 is not made by .*; write model\.head=CLASS"):
        libraries.hugging_face("t5", 5)


@pytest.mark.usefixtures("timm")
def test_what_the_model_has_to_know_comes_from_the_data() -> None:
    made = arguments("model=timm:mixer_s16", "model.width=6")["model"]()
    assert [tuple(each.shape) for each in made.parameters()] == [(6, 64), (6,), (10, 6), (10,)]
    assert compose(["model=timm:mixer_s16", "model.width=6"]).choices["model"] == "timm"


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=timm:resnet81"], "model=timm:resnet81 does not exist; did you mean resnet18"),
        (["model=timm:zzz"], "model=timm:zzz does not exist; there are 2, such as mixer_s16"),
        (["model=timm"], "model=timm needs a name, as in timm:NAME"),
        (["model=timm:mixer_s16", "model.depth=6"], "model cannot be made from these settings"),
        (["model=tim:mixer_s16"], "model=tim:mixer_s16 does not exist; choose one of"),
    ],
)
def test_names_and_settings_that_do_not_exist_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        arguments(*words)


@pytest.mark.parametrize(("library", "package"), PACKAGES.items())
def test_a_missing_package_is_named_with_the_command(
    library: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=f"model={library}:some needs the package {package}; pip install"):
        arguments(f"model={library}:some")


def test_torchvision_has_models_for_pictures_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "torchvision", SimpleNamespace(models=SimpleNamespace(list_models=lambda: ["resnet18"]))
    )
    with pytest.raises(SettingError, match="takes pictures of 3 channels, and the data have 1; choose other data"):
        arguments("model=torchvision:resnet18")
