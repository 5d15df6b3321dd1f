"""Convert settings (plain values) to the arguments of `bow.train` (objects)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import bow
from bow.cli.checking import TARGET, all_made, called, check_arguments, factory, imported, made, shown, suggestion
from bow.cli.composition import Composition, compose
from bow.cluster import is_leader
from bow.cluster.config import Devices
from bow.data import DataSplits
from bow.engines.config import Engine
from bow.errors import SettingError
from bow.graph.execution import call_factory
from bow.models import sequence_cross_entropy
from bow.training.config import Run, TrainConfig, Validation
from bow.training.metrics import Accuracy
from bow.values import whole, whole_seed

AUTO = "auto"
LAUNCHER = "launcher"  # starts the processes; not an argument of `bow.train`
SWEEP = "sweep"  # how the runs of a sweep are trained; not an argument of `bow.train`
SWEEPS = ("side_by_side", "one_by_one")
MEMBERS_OWN = ("seed", "optimizer", "scheduler", "batch_size")  # settings in which the members of a sweep may differ
WHOLE = ("batch_size", "epochs", "steps")
SECTIONS: dict[str, type] = {"engine": Engine, "devices": Devices, "validation": Validation, "run": Run}
METRICS: dict[str, Callable[[], Any]] = {"accuracy": Accuracy}


def recipe(name: str, *overrides: str) -> dict[str, Any]:
    """Return the arguments of `bow.train` for a recipe.

    Args:
        name: a file of `conf/recipe`, such as `"lenet"`.
        *overrides: settings as on the command line, such as `"learners=2"`.

    Raises:
        BowError: the recipe does not exist, an override is wrong, or its data are missing.

    Example:
        >>> arguments = recipe("lenet", "learners=2")
        >>> arguments["learners"]
        2
    """
    for each in overrides:
        if not isinstance(each, str):
            raise SettingError(f"an override is a string such as 'learners=2', got {each!r}")
    return build(compose([f"recipe={name}", *overrides]))


def build(composition: Composition) -> dict[str, Any]:
    """Return the arguments of `bow.train` for composed settings; reads the data, does not build the model."""
    check_values(composition)
    settings = composition.settings
    model, splits = model_and_data(composition)
    run, stop, learners = settings["run"], settings.get("stop"), settings["learners"]
    tuner = None if settings["tuner"] is None else made(settings["tuner"], "tuner")
    loggers = all_made(run["loggers"] or (), "run.loggers") if is_leader() else ()
    return {
        "model": model,
        "data": splits.train,
        **loss_or_step(composition, splits),
        "optimizer": _optimizer(settings["optimizer"]),
        "scheduler": _scheduler(settings["scheduler"]),
        "stop": all_made(stop, "stop") if isinstance(stop, list) else None if stop is None else made(stop, "stop"),
        # A tuner with default settings is left out: it would cause a warning in trainings with nothing to tune.
        "learners": learners if tuner in (None, bow.Tuner()) else dataclasses.replace(tuner, learners=learners),
        "sync": made(settings["sync"], "sync"),
        "engine": Engine(**settings["engine"]),
        "devices": Devices(**settings["devices"]),
        "validation": _validation(settings["validation"], splits),
        "run": Run(**{**run, "loggers": loggers}),
        "callbacks": all_made(settings["callbacks"] or (), "callbacks"),
        **{name: settings[name] for name in PLAIN if name != "learners"},
    }


def model_and_data(composition: Composition) -> tuple[Callable[[], nn.Module], DataSplits]:
    """Return the model's factory and the data, from which `auto` settings of the model are inferred."""
    splits = made(composition.settings["data"], "data")
    if not isinstance(splits, DataSplits):
        raise SettingError(f"data must be a function that returns DataSplits, got a {type(splits).__name__}")
    return _model(composition.settings["model"], splits, composition.choices), splits


def loss_or_step(composition: Composition, splits: DataSplits) -> dict[str, Any]:
    loss, step = composition.settings["loss"], composition.settings["step"]
    return {"loss": None if step else _loss(loss, splits), "step": None if step is None else imported(step, "step")}


def build_alike(arguments: Mapping[str, Any], composition: Composition) -> dict[str, Any]:
    settings = composition.settings
    own = {"optimizer": _optimizer(settings["optimizer"]), "scheduler": _scheduler(settings["scheduler"])}
    return {**arguments, **own, **{name: settings[name] for name in MEMBERS_OWN if name not in own}}


def check_values(composition: Composition) -> None:
    settings = composition.settings
    if composition.given("epochs") and composition.given("steps"):
        both = f"epochs={settings['epochs']} and steps={settings['steps']}"
        raise SettingError(f"{both} both set the length of training; keep one of them")
    if missing := [name for name in (*PLAIN, *SECTIONS, *OBJECTS) if name not in settings and name not in OPTIONAL]:
        raise SettingError(f"the settings lack {missing[0]}; add it as bow train --show prints it")
    check_arguments(bow.train, {name: value for name, value in settings.items() if name not in (*OBJECTS, *SECTIONS)})
    for name, section in SECTIONS.items():
        if not isinstance(settings[name], Mapping):
            raise SettingError(f"{name} must be a section, got {shown(settings[name])}; write {name}.NAME=VALUE")
        plain = {key: value for key, value in settings[name].items() if f"{name}.{key}" not in OBJECTS}
        check_arguments(section, plain, prefix=f"{name}.")
    if (size := settings["validation"]["batch_size"]) is not None:
        whole("validation.batch_size", size)
    whole_seed(settings["seed"])
    if settings.get(SWEEP, SWEEPS[0]) not in SWEEPS:
        raise SettingError(f"sweep must be {' or '.join(SWEEPS)}, got {shown(settings[SWEEP])}")
    for name in WHOLE:
        if settings[name] is not None:
            whole(name, settings[name])
    if settings["learners"] != AUTO:
        whole("learners", settings["learners"], also='"auto"')


def _model(settings: Any, splits: DataSplits, choices: Mapping[str, str]) -> Callable[[], nn.Module]:
    facts = _facts(splits)
    filled = dict(settings) if isinstance(settings, Mapping) else settings
    for name in [name for name in filled or () if filled[name] == AUTO]:
        if name not in facts:
            raise SettingError(
                f"model={choices.get('model')} needs {name}, which data={choices.get('data')} does not have; choose"
                f" other data or another model, or set model.{name}"
            )
        filled[name] = facts[name]
    build_model: Callable[[], nn.Module] = factory(filled, "model")
    # Built once to report errors early; bow.train builds it under the seed of the run.
    with torch.random.fork_rng(devices=[]):
        called(build_model, "model")
    return build_model


def _facts(splits: DataSplits) -> dict[str, int]:
    inputs = splits.validation[0]
    facts = {"classes": splits.classes}
    if inputs.is_floating_point():
        facts["in_features"] = inputs[0].numel()
    if inputs.dim() == 4:
        facts |= {"channels": inputs.shape[1], "size": inputs.shape[-1]}
    if inputs.dim() == 2 and not inputs.is_floating_point():
        facts |= {"vocabulary": splits.classes, "context": inputs.shape[1]}
    return facts


def _loss(setting: Any, splits: DataSplits) -> Callable[[Any, Any], Tensor]:
    if setting != AUTO:
        loss: Callable[[Any, Any], Tensor] = imported(setting, "loss")
        return loss
    targets = splits.validation[1]
    if targets.is_floating_point():
        return nn.functional.mse_loss
    return nn.functional.cross_entropy if targets.dim() == 1 else sequence_cross_entropy


def _validation(settings: Mapping[str, Any], splits: DataSplits) -> Validation:
    given = settings["data"]
    if given not in (AUTO, None, False):
        raise SettingError(f"validation.data must be auto (the held-out part of the data) or null, got {shown(given)}")
    data = splits.validation if given == AUTO else None
    return Validation(**{**settings, "data": data, "metrics": metrics_of(settings["metrics"])})


def _scheduler(settings: Any) -> Any:
    if settings is None:
        return None
    target = settings.get(TARGET) if isinstance(settings, Mapping) else None
    if target == "bow.PerRound":
        return bow.PerRound(factory(settings.get("factory"), "scheduler.factory"))
    return (made if target == "bow.WarmupCosine" else factory)(settings, "scheduler")


def metrics_of(settings: Any) -> tuple[Any, ...]:
    if not isinstance(settings, list | tuple | None):
        raise SettingError(
            f"validation.metrics must be a list, got {shown(settings)}; write validation.metrics=[{shown(settings)}]"
        )
    for each in settings or ():
        if not isinstance(each, Mapping) and each not in METRICS:
            raise SettingError(f"validation.metrics={shown(each)} does not exist; {suggestion(str(each), METRICS)}")
    return tuple(
        made(each, "validation.metrics") if isinstance(each, Mapping) else METRICS[each]() for each in settings or ()
    )


def _optimizer(settings: Any) -> Callable[..., Any]:
    optimizer = factory(settings, "optimizer")
    called(call_factory, "optimizer", optimizer, [("weight", nn.Parameter(torch.zeros(1)))])
    return optimizer


WITHIN = ("validation.data", "validation.metrics", "run.loggers")
# Keys whose values describe objects; all others have plain values
OBJECTS = (
    *("model", "data", "loss", "step", "optimizer", "scheduler", "stop", "tuner", "sync", "callbacks"),
    *(*WITHIN, LAUNCHER, SWEEP, "partition"),
)
OF_TRAIN = [each.name for each in dataclasses.fields(TrainConfig) if each.name not in ("check_partition", "source")]
PLAIN = tuple(name for name in OF_TRAIN if name not in (*SECTIONS, *OBJECTS))
OPTIONAL = ("stop", SWEEP, "partition", *WITHIN)  # keys that some runs' settings lack
