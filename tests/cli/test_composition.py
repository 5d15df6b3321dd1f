import dataclasses
import importlib.resources
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import bow
from bow.cli.arguments import SECTIONS
from bow.cli.composition import compose, options, recompose, sweep
from bow.data.opening import DEFAULT_BATCH_SIZE
from bow.errors import SettingError
from bow.training.checks import MOVED

NOT_PLAIN = ("model", "data", "loss", "optimizer", "sync", "callbacks", "tuner")
"""Arguments whose values are objects in Python and descriptions of objects, or auto, in the configuration."""


def test_a_path_in_the_home_directory_needs_no_quotes() -> None:
    composed = settings("run=~/runs/first")
    assert composed["run"]["path"] == "~/runs/first"


def settings(*overrides: str) -> dict[str, Any]:
    return compose(overrides).settings


def test_keys_are_the_arguments_of_train() -> None:
    keys = set(settings("recipe=none")) - {"launcher", "sweep", "tuner"}  # a tuner is given as learners
    assert keys == set(inspect.signature(bow.train).parameters)


def test_plain_defaults_are_those_of_train() -> None:
    parameters = inspect.signature(bow.train).parameters
    apart = (*NOT_PLAIN, *SECTIONS, "launcher", "sweep")
    plain = {name: value for name, value in settings("recipe=none").items() if name not in apart}
    assert plain == {name: parameters[name].default for name in plain} | {"batch_size": DEFAULT_BATCH_SIZE}


@pytest.mark.parametrize("name", SECTIONS)
def test_sections_have_the_fields_and_defaults_of_their_classes(name: str) -> None:
    own, kept = SECTIONS[name](), settings("recipe=none")[name]
    fields = [field.name for field in dataclasses.fields(own)]
    assert sorted(kept) == sorted(fields)
    objects = ("data", "metrics", "loggers")
    assert {key: value for key, value in kept.items() if key not in objects} == {
        key: getattr(own, key) for key in fields if key not in objects
    }


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
    assert settings("engine=eager")["engine"]["name"] == "eager"
    assert settings("engine=graph", "engine.compile=true")["engine"]["compile"] is True


def test_a_section_can_be_given_by_its_first_field() -> None:
    composed = settings("run=there", "run.resume=auto", "devices=2", "validation=null")
    assert (composed["run"]["path"], composed["run"]["resume"]) == ("there", "auto")
    assert composed["devices"]["count"] == 2
    assert composed["validation"]["data"] is None


@pytest.mark.parametrize("name", ["lr_interval", "strategy", "run_dir"])
def test_former_keys_are_refused_with_the_one_of_now(name: str) -> None:
    with pytest.raises(SettingError, match=f"sets {name}, which is {re.escape(MOVED[name][1])} now"):
        settings(f"{name}=1")
    with pytest.raises(SettingError, match=f"sets {name}, which is"):
        settings(f"++{name}.part=1")


def test_the_engine_for_whole_rounds_is_refused_with_what_it_is_now() -> None:
    with pytest.raises(SettingError, match=r"is engine=graph engine.capture=round now"):
        settings("engine=whole_round")


def test_a_runs_settings_are_composed_again(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    first = settings("recipe=lenet", "seed=5", "run=first")
    file.write_text(yaml.safe_dump(first))
    assert recompose(file, ["run.resume=auto"]).settings == {**first, "run": {**first["run"], "resume": "auto"}}
    assert recompose(file, []).settings == {**first, "run": {**first["run"], "path": None}}
    changed = recompose(
        file, ["run=again", "optimizer.lr=0.5", "engine=graph", "validation.target.accuracy=0.9"]
    ).settings
    assert changed["run"] == {**first["run"], "path": "again"}
    assert changed["optimizer"] == {**first["optimizer"], "lr": 0.5}
    assert changed["engine"] == {**first["engine"], "name": "graph"}
    assert changed["validation"]["target"] == {"accuracy": 0.9}


@pytest.mark.parametrize("name", ["lenet", "logistic_regression", "lstm", "resnet32", "transformer", "none"])
def test_a_recipes_settings_are_composed_again(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(first := settings(f"recipe={name}", "logger=tensorboard", "launcher=torchrun")))
    assert recompose(file, []).settings == first


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer=adam", "chooses another optimizer, but --config has the settings of one"),
        ("optimizer.lrr=1", "did you mean optimizer.lr?"),
        ("epoch=3", "did you mean epochs?"),
        ("resume=auto", "sets resume, which is run.resume=... now"),
    ],
)
def test_what_a_runs_settings_do_not_have_is_refused(tmp_path: Path, override: str, message: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(settings("recipe=lenet")))
    with pytest.raises(SettingError, match=re.escape(message)):
        recompose(file, [override])


@pytest.mark.parametrize("text", [None, "[", "model: Linear", "- 1"])
def test_a_file_that_is_not_of_a_run_of_the_shell_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(
        SettingError, match=r"--config .*(cannot be read|is not from a run of the bow train command)"
    ) as found:
        recompose(file, [])
    assert "Errno" not in str(found.value)


def test_several_loggers_can_be_chosen() -> None:
    assert set(settings("logger=[wandb,tensorboard]")["run"]["loggers"]) == {"wandb", "tensorboard"}
    assert settings("logger=wandb", "run.loggers.wandb.project=mine")["run"]["loggers"]["wandb"]["project"] == "mine"
    assert settings()["run"]["loggers"] == {}


def test_target_needs_no_braces() -> None:
    assert settings("validation.target.accuracy=0.9")["validation"]["target"] == {"accuracy": 0.9}
    assert settings("validation.target={accuracy:0.9}")["validation"]["target"] == {"accuracy": 0.9}


def test_interpolations_are_resolved() -> None:
    assert settings("epochs=3", "seed=${epochs}")["seed"] == 3


def test_composition_remembers_what_was_given() -> None:
    composition = compose(["epochs=3", "+validation.target.accuracy=0.5"])
    assert composition.given("epochs")
    assert not composition.given("steps")


def test_composing_leaves_no_files(tmp_path: Path) -> None:
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
    with pytest.raises(SettingError, match=r"learners=range\(0\) has no values"):
        sweep(["learners=range(0)"])


def test_sweep_of_nothing_is_one_run() -> None:
    assert sweep([]) == [[]]


def test_sweep_keeps_quotes_and_lists() -> None:
    runs = sweep(["run='a b','c d'", "model=mlp", "model.hidden=[1,2],[3]"])
    hidden = [compose([*run[1:]]).settings["model"]["hidden"] for run in runs]
    assert hidden == [[1, 2], [3], [1, 2], [3]]
    assert compose(runs[0]).settings["run"]["path"] == "a b"


def test_mistakes_do_not_leave_hydra_in_a_bad_state() -> None:
    with pytest.raises(SettingError):
        compose(["model=vgg"])
    assert compose(["model=mlp"]).choices["model"] == "mlp"


def test_a_scheduler_that_is_described_whole_keeps_nothing_of_the_recipes() -> None:
    scheduler = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 7}
    settings = compose(
        ["recipe=lenet", "seed=7", f"scheduler={{_target_: {scheduler['_target_']}, step_size: ${{seed}}}}"]
    )
    assert settings.settings["scheduler"] == scheduler


def test_the_tuners_defaults_are_those_of_its_class() -> None:
    described = settings("recipe=none")["tuner"]
    assert bow.Tuner(**{name: value for name, value in described.items() if name != "_target_"}) == bow.Tuner()
    assert set(described) == {"_target_", *(field.name for field in dataclasses.fields(bow.Tuner))} - {
        "pinned",
        "learners",
    }


def test_a_recipe_of_ones_own_takes_another_model(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    shipped = importlib.resources.files("bow.conf").joinpath("recipe/lenet.yaml").read_text()
    (tmp_path / "recipe/mine.yaml").write_text(shipped)
    places = f"hydra.searchpath=[file://{tmp_path}]"
    assert settings(places, "recipe=mine", "model=mlp") == settings("recipe=lenet", "model=mlp")
