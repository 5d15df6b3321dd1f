import importlib.resources
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import bow
from bow.cli.arguments import build, recipe
from bow.cli.checking import imported
from bow.cli.composition import compose, options
from bow.models import sequence_cross_entropy

IMAGES = ("googlenet", "lenet", "logistic_regression", "mlp", "pathnet", "resnet", "resnet50")
TEXTS = ("lstm", "phased_lstm", "rnn_language_model", "transformer")


def arguments(*overrides: str) -> dict[str, Any]:
    return build(compose(["recipe=none", *overrides]))


def group_files() -> list[Path]:
    root = Path(str(importlib.resources.files("bow.conf")))
    return [
        path
        for path in sorted(root.glob("*/*.yaml"))
        if "_target_" in path.read_text() and path.parent.name != "recipe"
    ]


@pytest.mark.parametrize("path", group_files(), ids=lambda path: f"{path.parent.name}={path.stem}")
def test_every_option_lists_existing_arguments_with_their_defaults(path: Path) -> None:
    written = yaml.safe_load(path.read_text())
    parameters = inspect.signature(imported(written.pop("_target_"), "test")).parameters
    assert set(written) <= set(parameters)
    for part in (value for value in written.values() if isinstance(value, dict)):  # made of other objects
        assert set(part) - {"_target_"} <= set(inspect.signature(imported(part["_target_"], "test")).parameters)
    if path.parent.name in ("sync", "data") and path.stem != "two_level":
        assert {name: _plain(parameters[name].default) for name in parameters} == written


@pytest.mark.parametrize("model", IMAGES)
def test_image_models_follow_the_data(model: str) -> None:
    built = arguments(f"model={model}", "data=synthetic", "data.samples=4", "data.classes=7")
    outputs = built["model"]()(built["data"][0])
    assert outputs.shape == (4, 7)


@pytest.mark.parametrize("model", TEXTS)
def test_language_models_follow_the_data(model: str) -> None:
    built = arguments(f"model={model}", "data=text", "data.limit=2", "data.sequence_length=8")
    inputs, targets = built["data"]
    logits = built["model"]()(inputs)
    assert logits.shape[:2] == (2, 8)
    assert int(targets.max()) < logits.shape[2]


def test_a_size_that_is_given_is_kept() -> None:
    assert arguments("model.classes=12")["model"]().output.out_features == 12


def test_loss_fits_the_targets() -> None:
    assert arguments()["loss"] is nn.functional.cross_entropy
    assert arguments("model=lstm", "data=text")["loss"] is sequence_cross_entropy
    assert arguments("loss=torch.nn.functional.mse_loss")["loss"] is nn.functional.mse_loss


def test_step_function_replaces_the_loss() -> None:
    built = arguments("step=tests.cli.experiments.loss_per_sample")
    assert built["loss"] is None
    assert built["step"].__name__ == "loss_per_sample"


def test_validation_is_the_held_out_part_or_nothing() -> None:
    assert len(arguments()["validation"].data[0]) == 355
    assert arguments("validation=null")["validation"].data is None


def test_optimizer_and_scheduler_are_functions_that_make_one() -> None:
    scheduler = "scheduler={_target_:torch.optim.lr_scheduler.StepLR,step_size:2}"
    built = arguments("optimizer=adamw", "optimizer.lr=0.5", scheduler)
    optimizer = built["optimizer"]([nn.Parameter(torch.zeros(1))])
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert built["scheduler"](optimizer).step_size == 2


def test_synchroniser_gets_its_settings() -> None:
    sync = arguments("sync=diloco", "sync.every=3")["sync"]
    assert isinstance(sync, bow.DiLoCo)
    assert sync.every == 3


def test_loggers_are_made() -> None:
    made = arguments("logger=[wandb,tensorboard]", "run.loggers.wandb.project=mine")["run"].loggers
    assert [type(logger).__name__ for logger in made] == ["WandbLogger", "TensorBoardLogger"]
    assert made[0].project == "mine"


def test_building_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(0)
    arguments()
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))


@pytest.mark.parametrize("name", options()["recipe"])
def test_every_recipe_builds(name: str) -> None:
    built = recipe(name)
    assert set(built) == set(inspect.signature(bow.train).parameters)
    assert sum(parameter.numel() for parameter in built["model"]().parameters()) > 0


def test_recipe_takes_overrides() -> None:
    assert recipe("lenet", "learners=3")["learners"] == 3


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_the_tuner_is_made_where_it_differs_from_the_defaults() -> None:
    assert arguments()["learners"] == "auto"
    assert arguments("tuner.objective=goodput", "tuner.share=0.1")["learners"] == bow.Tuner(
        objective="goodput", share=0.1
    )
    assert arguments("tuner=null", "learners=4")["learners"] == 4
    assert arguments("tuner.cache=false", "learners=4")["learners"] == bow.Tuner(4, cache=False)
