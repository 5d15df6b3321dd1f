import dataclasses
import importlib.resources
import inspect
from typing import Any

import pytest
import yaml

import bow
from bow.cli.composition import compose, options, sweep
from bow.data.opening import DEFAULT_BATCH_SIZE
from bow.errors import SettingError

NOT_PLAIN = ("model", "data", "loss", "optimizer", "sync", "validation", "metrics", "callbacks", "loggers", "tuner")
"""Arguments whose values are objects in Python and descriptions of objects, or auto, in the configuration."""


def test_a_path_in_the_home_directory_needs_no_quotes() -> None:
    composed = settings("run_dir=~/runs/first")
    assert composed["run_dir"] == "~/runs/first"


def settings(*overrides: str) -> dict[str, Any]:
    return compose(overrides).settings


def test_keys_are_the_arguments_of_train() -> None:
    assert set(settings("recipe=none")) - {"launcher"} == set(inspect.signature(bow.train).parameters)


def test_plain_defaults_are_those_of_train() -> None:
    parameters = inspect.signature(bow.train).parameters
    plain = {name: value for name, value in settings("recipe=none").items() if name not in (*NOT_PLAIN, "launcher")}
    assert plain == {name: parameters[name].default for name in plain} | {"batch_size": DEFAULT_BATCH_SIZE}


def test_default_recipe_is_lenet_on_the_digits() -> None:
    assert compose([]).choices["recipe"] == "lenet"
    assert settings() == settings("recipe=lenet")
    assert settings()["model"]["_target_"] == "bow.models.LeNet"
    assert settings()["data"]["_target_"] == "bow.data.digits"


def test_recipe_sets_what_its_file_says() -> None:
    text = importlib.resources.files("bow.conf").joinpath("recipe/transformer.yaml").read_text()
    written = yaml.safe_load(text)
    composed = settings("recipe=transformer")
    assert composed["optimizer"]["lr"] == written["optimizer"]["lr"]
    assert composed["clip_norm"] == written["clip_norm"]
    assert composed["model"]["_target_"] == "bow.models.Transformer"


def test_command_line_wins_over_recipe() -> None:
    composed = settings("recipe=lenet", "learners=7", "optimizer.lr=0.5", "data=synthetic")
    assert composed["learners"] == 7
    assert composed["optimizer"]["lr"] == 0.5
    assert composed["data"]["_target_"] == "bow.data.synthetic_images"


def test_another_optimizer_comes_without_the_values_of_the_recipe() -> None:
    chosen = settings("recipe=lenet", "optimizer=adamw")["optimizer"]
    assert chosen == settings("recipe=none", "optimizer=adamw")["optimizer"]
    assert settings("recipe=lenet", "optimizer=adamw", "optimizer.lr=0.5")["optimizer"]["lr"] == 0.5


def test_the_rest_of_the_recipe_stays_with_another_optimizer() -> None:
    composed = settings("recipe=resnet32", "optimizer=adamw")
    assert composed["data"] == settings("recipe=resnet32")["data"]
    assert composed["epochs"] == settings("recipe=resnet32")["epochs"]


def test_settings_of_the_recipes_own_data_can_be_changed_with_another_model() -> None:
    composed = settings("recipe=lstm", "model=transformer", "data.sequence_length=8")
    assert composed["data"]["sequence_length"] == 8
    assert composed["model"]["_target_"] == "bow.models.Transformer"


def test_naming_the_recipes_own_option_keeps_its_values() -> None:
    assert settings("recipe=lenet", "optimizer=sgd") == settings("recipe=lenet")


def test_engine_is_a_group_and_a_plain_value() -> None:
    assert settings("engine=eager")["engine"] == "eager"


def test_several_loggers_can_be_chosen() -> None:
    assert set(settings("logger=[wandb,tensorboard]")["loggers"]) == {"wandb", "tensorboard"}
    assert settings("logger=wandb", "loggers.wandb.project=mine")["loggers"]["wandb"]["project"] == "mine"
    assert settings()["loggers"] == {}


def test_target_needs_no_braces() -> None:
    assert settings("target.accuracy=0.9")["target"] == {"accuracy": 0.9}
    assert settings("target={accuracy:0.9}")["target"] == {"accuracy": 0.9}


def test_interpolations_are_resolved() -> None:
    assert settings("epochs=3", "seed=${epochs}")["seed"] == 3


def test_composition_remembers_what_was_given() -> None:
    composition = compose(["epochs=3", "+target.accuracy=0.5"])
    assert composition.given("epochs")
    assert not composition.given("steps")


def test_composing_leaves_no_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compose(["learners=2"])
    sweep(["learners=1,2"])
    assert not list(tmp_path.iterdir())


def test_sweep_is_every_combination_in_order() -> None:
    assert sweep(["learners=1,2", "model=mlp", "seed=range(2)"]) == [
        ["learners=1", "model=mlp", "seed=0"],
        ["learners=1", "model=mlp", "seed=1"],
        ["learners=2", "model=mlp", "seed=0"],
        ["learners=2", "model=mlp", "seed=1"],
    ]


def test_sweep_over_all_options_of_a_group() -> None:
    assert sweep(["engine=glob(*)"]) == [[f"engine={name}"] for name in options()["engine"]]


def test_sweep_over_no_value_is_refused() -> None:
    with pytest.raises(SettingError, match=r"learners=range\(0\) stands for no value"):
        sweep(["learners=range(0)"])


def test_sweep_of_nothing_is_one_run() -> None:
    assert sweep([]) == [[]]


def test_sweep_keeps_quotes_and_lists() -> None:
    runs = sweep(["run_dir='a b','c d'", "model=mlp", "model.hidden=[1,2],[3]"])
    hidden = [compose([*run[1:]]).settings["model"]["hidden"] for run in runs]
    assert hidden == [[1, 2], [3], [1, 2], [3]]
    assert compose(runs[0]).settings["run_dir"] == "a b"


def test_mistakes_do_not_leave_hydra_in_a_bad_state() -> None:
    with pytest.raises(SettingError):
        compose(["model=vgg"])
    assert compose(["model=mlp"]).choices["model"] == "mlp"


def test_a_scheduler_that_is_described_whole_keeps_nothing_of_the_recipes() -> None:
    scheduler = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 7}
    settings = compose(
        ["recipe=lenet", "seed=7", f"lr_scheduler={{_target_: {scheduler['_target_']}, step_size: ${{seed}}}}"]
    )
    assert settings.settings["lr_scheduler"] == scheduler


def test_the_tuners_defaults_are_those_of_its_class() -> None:
    described = settings("recipe=none")["tuner"]
    assert bow.Tuner(**{name: value for name, value in described.items() if name != "_target_"}) == bow.Tuner()
    assert set(described) == {"_target_", *(field.name for field in dataclasses.fields(bow.Tuner))} - {"pinned"}
