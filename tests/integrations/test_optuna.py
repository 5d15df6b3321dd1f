"""Trials side by side are those of a loop, and the study hears of each."""

import functools
import importlib
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bow
from bow.devices import num_threads
from bow.errors import MissingDependencyError, SettingError
from tests.forked import FORKED

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.WARNING)
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

INPUTS = torch.randn(96, 5, generator=torch.Generator().manual_seed(0))
DATA = INPUTS, (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
SGD = functools.partial(torch.optim.SGD, momentum=0.9)
EPOCHS = 4


def model(width: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))


def settings(trial: Any) -> bow.Variant:
    lr = trial.suggest_float("lr", 1e-3, 0.5, log=True)
    return bow.Variant(seed=trial.suggest_int("seed", 0, 3), settings={"lr": lr})


def optimized(study: Any, path: Path, ask: Any = settings, **given: Any) -> Any:
    given = {"n_trials": 6, "epochs": EPOCHS, "optimizer": SGD, "engine": "eager", "validation": DATA, **given}
    run = bow.Run(path, progress=False)
    return bow.optuna.optimize(study, ask, model, DATA, nn.functional.cross_entropy, run=run, **given)


@num_threads(1)
def loop(study: Any, path: Path) -> None:
    """What users of Optuna write, over one training after another."""
    for number in range(6):
        trial = study.ask()
        variant = settings(trial)
        result = bow.train(
            model,
            DATA,
            nn.functional.cross_entropy,
            learners=1,
            seed=variant.seed,
            optimizer=variant.make_optimizer(SGD),
            epochs=EPOCHS,
            engine="eager",
            validation=DATA,
            run=bow.Run(path / str(number), progress=False),
        )
        for step, record in enumerate(result.history, 1):
            trial.report(record["accuracy"], step)
            if trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, result.history[-1]["accuracy"])


def summary(study: Any) -> list[Any]:
    return [(trial.params, trial.value, trial.state, trial.intermediate_values) for trial in study.trials]


def random_study() -> Any:
    sampler = optuna.samplers.RandomSampler(seed=0)
    return optuna.create_study(direction="maximize", sampler=sampler, pruner=optuna.pruners.NopPruner())


def learning_study() -> Any:
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=3)
    return optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)


@pytest.mark.parametrize(("make", "side_by_side"), [(random_study, 4), (learning_study, 1)])
def test_trials_are_those_of_a_loop(make: Any, side_by_side: int, tmp_path: Path) -> None:
    ours, theirs = make(), make()
    result = optimized(ours, tmp_path / "ours", side_by_side=side_by_side)
    loop(theirs, tmp_path / "theirs")
    assert summary(ours) == summary(theirs)
    assert result.at_once == side_by_side
    if make is learning_study:
        assert any(trial.state == optuna.trial.TrialState.PRUNED for trial in ours.trials)
    for trial in ours.trials:
        assert (Path(trial.user_attrs["run_dir"]) / "model.safetensors").exists()


def test_pruned_rows_are_refilled(tmp_path: Path) -> None:
    study = learning_study()
    result = optimized(study, tmp_path / "study", n_trials=12, side_by_side=4)
    states = Counter(trial.state.name for trial in study.trials)
    assert states["PRUNED"] > 0
    assert states["PRUNED"] + states["COMPLETE"] == 12
    for trial in study.trials:
        member = result[f"trial {trial.number}"]
        assert (member.stopped == "pruned") == (trial.state.name == "PRUNED")
        assert list(trial.intermediate_values.values()) == [record["accuracy"] for record in member.history]
    assert len(result.ensemble.models) == states["COMPLETE"]
    assert result.best.metrics["accuracy"] == study.best_value


def test_trials_that_do_not_come_to_a_value_are_told(tmp_path: Path) -> None:
    def ask(trial: Any) -> bow.Variant:
        lr = trial.suggest_categorical("lr", [0.01, 1e30])
        if trial.number == 1:
            raise optuna.TrialPruned
        return bow.Variant(settings={"lr": 1e30 if trial.number == 2 else lr * 0 + 0.01})

    study = random_study()
    result = optimized(study, tmp_path / "study", ask, n_trials=4, side_by_side=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE"]
    assert [member.name for member in result] == ["trial 0", "trial 2", "trial 3"]


def test_no_trial_is_left_running_by_an_error(tmp_path: Path) -> None:
    def ask(trial: Any) -> bow.Variant:
        if trial.number == 2:
            raise ZeroDivisionError
        return settings(trial)

    study = random_study()
    with pytest.raises(ZeroDivisionError):
        optimized(study, tmp_path / "study", ask, side_by_side=3)
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 3


def test_members_that_are_halved_are_pruned_trials(tmp_path: Path) -> None:
    study, rule = random_study(), bow.Halving(reduction=2, asynchronous=True)
    result = optimized(study, tmp_path / "study", side_by_side=2, stop=rule)
    halved = [f"trial {trial.number}" for trial in study.trials if trial.state.name == "PRUNED"]
    assert halved
    assert halved == [member.name for member in result if member.stopped == "halving"]


STORAGES = (
    "optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend({path!r}))",  # imports no SQLAlchemy
    pytest.param("'sqlite:///' + {path!r}", marks=pytest.mark.nightly),
)


@pytest.mark.parametrize("storage", STORAGES, ids=["journal", "sqlite"])
def test_a_study_goes_on_where_a_process_died(storage: str, tmp_path: Path) -> None:
    storage = storage.format(path=f"{tmp_path}/study")
    script = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parents[1])]}
from integrations.test_optuna import *
def die(trial):
    return os._exit(9) if trial.number == 3 else settings(trial)
study = optuna.create_study(study_name="s", storage={storage}, direction="maximize")
optimized(study, Path({str(tmp_path)!r}) / "first", die, side_by_side=2)
"""
    assert subprocess.run([*FORKED, "-c", script], check=False).returncode == 9
    study = optuna.load_study(study_name="s", storage=eval(storage))
    with pytest.warns(UserWarning, match=r"trials \[2, 3\] of the study are running"):
        optimized(study, tmp_path / "second", n_trials=1)
    left = study.get_trials(states=[optuna.trial.TrialState.RUNNING])
    for trial in left:
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params)
    result = optimized(study, tmp_path / "third", n_trials=2)
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "COMPLETE", "FAIL", "FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
    assert study.trials[5].params == left[0].params
    assert result["trial 5"].value("accuracy") == study.trials[5].value


def test_without_optuna_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "bow.integrations.optuna", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bow-trainer\[optuna\]'"):
        importlib.import_module("bow.integrations.optuna")


def test_settings_that_change_shapes(tmp_path: Path) -> None:
    def ask(trial: Any) -> bow.Variant:
        return bow.Variant(model={"width": trial.suggest_int("width", 2, 4)}, settings={"lr": 0.1})

    study = random_study()
    result = optimized(study, tmp_path / "study", ask, side_by_side=3)
    assert all(trial.state.name == "COMPLETE" for trial in study.trials)
    for trial in study.trials:
        assert len(result[f"trial {trial.number}"].model[0].weight) == trial.params["width"]


@pytest.mark.parametrize(
    ("directions", "given", "said"),
    [
        (["minimize"], {}, "direction='maximize'"),
        (["maximize"], {"metric": "loss"}, "direction='minimize'"),
        (["maximize"], {"metric": "f1"}, "metric='f1' is not measured; choose from loss, train_loss, accuracy"),
        (["maximize"], {"learners": 2}, "several learners run one after another, got side_by_side=[0-9]+; use 1"),
        (["maximize"] * 2, {}, "2 objectives"),
        (["maximize"], {"n_trials": 0}, "n_trials"),
        (["maximize"], {"side_by_side": 0}, "side_by_side"),
        (["maximize"], {"variants": []}, "sets variants itself"),
        (["maximize"], {"stop": 3}, "stop must be"),
        (["maximize"], {"ask": 3}, "a function of a trial"),
        (["maximize"], {"ask": lambda trial: {"lr": 0.1}}, "must return a bow.Variant"),
    ],
)
def test_wrong_use_gets_a_sentence(directions: list[str], given: dict[str, Any], said: str, tmp_path: Path) -> None:
    study = optuna.create_study(directions=directions)
    with pytest.raises(SettingError, match=said):
        optimized(study, tmp_path / "study", **given)
    assert not [trial for trial in study.trials if trial.state.name == "RUNNING"]
