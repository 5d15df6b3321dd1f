from __future__ import annotations

import contextlib
import copy
import errno
import functools
import json
import math
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, load_model, save_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import bow
from bow.errors import DataError, DivergenceError, SettingError
from bow.observe.records import read_records
from tests.training.blueprints import Behind, Data, Given, Iterated, Train, assert_equal_models

SGD = functools.partial(torch.optim.SGD, lr=0.1)


class Recorder:
    """A logger that remembers."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.closed = 0

    def log(self, record: Mapping[str, Any]) -> None:
        assert not self.closed
        self.records.append(dict(record))

    def close(self) -> None:
        self.closed += 1

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]


class Rates:
    """Notes the learning rate that each round was trained with."""

    def __init__(self) -> None:
        self.lrs: list[float] = []

    def on_round_end(self, run: Any) -> None:
        self.lrs.append(round(run.replicas.optimizer.param_groups[0]["lr"], 6))


def test_a_training_ends_with_what_learners_side_by_side_have_brought(
    train: Train, model: nn.Module, data: Data
) -> None:
    recorder = Recorder()
    train(model, data, engine="graph", learners=2, steps=8, loggers=[recorder])
    said = [(record.get("event"), record.get("message", "")) for record in recorder.records[-2:]]
    assert [event for event, _ in said] == ["parallel learning tasks", None]
    assert said[0][1].startswith("2 learners, ")


class Late(threading.local):
    """A value where nobody can watch it."""

    factor = 1.0


LATE = Late()


class Changing:
    """Changes it behind a round, and may ask to stop a little later."""

    def __init__(self, at: int, stop: int | None = None) -> None:
        self.at = at
        self.stop = stop

    def on_round_end(self, run: Any) -> None:
        LATE.factor = 1.0 if run.round < self.at else 2.0
        if run.round == self.stop:
            run.stop()


def late(module: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(module(batch[0]), batch[1]) * LATE.factor


@pytest.mark.parametrize(("ends", "told"), [({"steps": 80}, True), ({}, True), ({"steps": 70}, False)])
def test_a_change_behind_the_last_check_is_told_at_the_end(
    train: Train, model: nn.Module, data: Data, ends: Any, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.engines.live_check.SHARE", 1e-9)  # nothing by the clock
    LATE.factor = 1.0
    recorder, changing = Recorder(), Changing(70, None if ends else 77)
    with pytest.warns(UserWarning, match="last matched in round") if told else contextlib.nullcontext():
        train(
            model, data, None, step=late, engine="graph", learners=1, **{"steps": 200, **ends},
            loggers=[recorder], callbacks=[changing],
        )  # fmt: skip
    found = [record["event"] for record in recorder.of_kind("event")]
    assert found == ["engine changed"] * told
    LATE.factor = 1.0


def test_the_central_model_is_evaluated_after_every_epoch(train: Train, model: nn.Module, data: Data) -> None:
    seen: list[nn.Module] = []

    class Keep:
        def on_epoch_end(self, run: Any, record: Any) -> None:
            seen.append(copy.deepcopy(run.replicas.central))

    validation = (data[0][:20], data[1][:20])
    result = train(model, data, epochs=3, validation=validation, callbacks=[Keep()])
    assert len(result.history) == 3
    for record, central in zip(result.history, seen, strict=True):
        with torch.no_grad():
            outputs = central(validation[0])
        assert record["loss"] == pytest.approx(float(cross_entropy(outputs, validation[1])), rel=1e-5)
        assert record["accuracy"] == pytest.approx(float((outputs.argmax(1) == validation[1]).float().mean()))
    assert torch.equal(result.model.weight, seen[-1].weight)


def of_the_first_class(model: nn.Module, batch: Any) -> Any:
    loss = cross_entropy(model(batch[0]), batch[1])
    return loss, {"first": (batch[1] == 0).float().mean()}


@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("is_loader", [False, True])
def test_loss_and_values_of_the_training_are_means_over_samples(
    train: Train, model: nn.Module, data: Data, is_loader: bool, engine: str, learners: int
) -> None:
    inputs, targets = data[0][:26], data[1][:26].sort().values
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)  # 8, 8, 8 and 2
    given: dict[str, Any] = {"step": of_the_first_class, "optimizer": functools.partial(torch.optim.SGD, lr=0.0)}
    given |= {"engine": engine, "learners": learners, "batch_size": None if is_loader else 8}
    (record,) = train(model, loader if is_loader else (inputs, targets), **given).history
    with torch.no_grad():
        assert record["train_loss"] == pytest.approx(float(cross_entropy(model(inputs), targets)), rel=1e-6)
    assert record["train_first"] == pytest.approx(float((targets == 0).float().mean()), rel=1e-6)


def test_the_training_loss_covers_the_tasks_of_its_epoch_only(train: Train, model: nn.Module, data: Data) -> None:
    losses: list[float] = []
    keep = Behind(lambda run: losses.extend(run.replicas.last.losses.tolist()))
    result = train(model, data, epochs=2, callbacks=[keep])
    for epoch, record in enumerate(result.history):
        assert record["train_loss"] == pytest.approx(sum(losses[epoch * 12 : (epoch + 1) * 12]) / 12)


def test_evaluation_does_not_change_the_training(train: Train, data: Data, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 3))
    runs = [
        train(model, data, epochs=2, sync=sync, validation=validation, run_dir=tmp_path / f"{i}{validation is None}")
        for i, sync in enumerate((bow.SMA(), bow.Independent()))
        for validation in (None, data)
    ]
    for without, evaluated in zip(runs[::2], runs[1::2], strict=True):
        assert_equal_models(evaluated.model, without.model)


def test_a_target_ends_the_training_and_the_time_is_kept(train: Train, model: nn.Module, data: Data) -> None:
    recorder = Recorder()
    result = train(model, data, epochs=50, validation=data, target={"accuracy": 0.7}, loggers=[recorder])
    assert len(result.history) < 50
    assert result.metrics["accuracy"] >= 0.7
    assert all(record["accuracy"] < 0.7 for record in result.history[:-1])
    assert result.time_to_target is not None
    assert result.history[-1]["time_s"] <= result.time_to_target <= result.seconds
    (event,) = recorder.of_kind("event")
    assert (event["event"], event["round"]) == ("target reached", result.history[-1]["round"])
    assert recorder.of_kind("end")[0]["time_to_target_s"] == result.time_to_target


def test_a_loss_is_a_target_reached_from_above(train: Train, model: nn.Module, data: Data) -> None:
    result = train(model, data, epochs=50, validation=data, target={"loss": 0.5})
    assert result.time_to_target is not None
    assert result.history[-1]["loss"] <= 0.5
    assert all(record["loss"] > 0.5 for record in result.history[:-1])


def test_all_targets_must_be_reached(train: Train, model: nn.Module, data: Data) -> None:
    result = train(model, data, epochs=3, validation=data, target={"accuracy": 0.1, "loss": 1e-9})
    assert result.time_to_target is None
    assert len(result.history) == 3


@pytest.mark.parametrize(("interval", "expected"), [("epoch", [0.1] * 6 + [0.05] * 6), ("round", [0.1, 0.05, 0.025])])
def test_the_scheduler_is_stepped_per_epoch_or_round(
    train: Train, model: nn.Module, data: Data, interval: str, expected: list[float]
) -> None:
    rates = Rates()
    halved = functools.partial(StepLR, step_size=1, gamma=0.5)
    result = train(
        model, data, epochs=2, optimizer=SGD, scheduler=halved, per_round=interval == "round", callbacks=[rates]
    )
    assert rates.lrs[: len(expected)] == expected
    assert len(rates.lrs) == 12
    assert result.history[0]["lr"] == (0.1 if interval == "epoch" else pytest.approx(0.1 / 2**6))


def test_the_scheduler_is_stepped_for_each_of_the_epochs_that_a_round_completes(
    train: Train, model: nn.Module, data: Data
) -> None:
    rates, samples = Rates(), TensorDataset(*data)
    loader = DataLoader(samples, batch_sampler=BatchSampler(RandomSampler(samples), 16, drop_last=False))
    halved = functools.partial(StepLR, step_size=1, gamma=0.5)
    settings = {"batch_size": None, "epochs": 6, "learners": 6, "optimizer": SGD, "scheduler": halved}
    result = train(model, loader, callbacks=[rates], **settings)
    assert [record["epoch"] for record in result.history] == [2, 4, 6]
    assert rates.lrs == [0.1, 0.025, 0.00625]


@pytest.mark.parametrize("validated", [True, False])
def test_reduce_on_plateau_follows_the_validation_loss(
    train: Train, model: nn.Module, data: Data, validated: bool
) -> None:
    seen: list[float] = []

    class Plateau(ReduceLROnPlateau):
        def step(self, metrics: Any, epoch: int | None = None) -> None:
            seen.append(metrics)
            super().step(metrics, epoch)

    result = train(
        model, data, epochs=4, scheduler=lambda o: Plateau(o, threshold=10.0, threshold_mode="abs", patience=0),
        validation=data if validated else None,
    )  # fmt: skip
    assert seen == [record["loss" if validated else "train_loss"] for record in result.history]
    assert [round(record["lr"], 6) for record in result.history] == [0.1, 0.1, 0.01, 0.001], "no loss is better by 10"


def test_reduce_on_plateau_per_round_follows_the_training_loss(train: Train, model: nn.Module, data: Data) -> None:
    rates = Rates()
    plateau = functools.partial(ReduceLROnPlateau, threshold=10.0, threshold_mode="abs", patience=2)
    train(model, data, scheduler=plateau, per_round=True, callbacks=[rates])
    assert rates.lrs == [0.1, 0.1, 0.1, 0.1, 0.01, 0.01]


def test_a_learning_rate_drop_restarts_the_learners_and_says_so(train: Train, model: nn.Module, data: Data) -> None:
    apart: list[bool] = []
    compare = Behind(lambda run: apart.append(not torch.equal(run.replicas.W[0], run.replicas.z)))
    recorder = Recorder()
    drop = functools.partial(LambdaLR, lr_lambda=lambda epoch: 0.1 if epoch == 2 else 1.0)
    settings = {"epochs": 3, "scheduler": drop, "batch_size": 8, "callbacks": [compare], "loggers": [recorder]}
    train(model, data, **settings)
    assert apart == [True] * 6 + [False] + [True] * 2, "in the first round of the third epoch"
    (event,) = recorder.of_kind("event")
    assert event["event"] == "restart"
    assert "learning rate fell from" in event["message"]


def test_without_restart_a_drop_changes_nothing(train: Train, model: nn.Module, data: Data) -> None:
    recorder = Recorder()
    train(
        model, data, epochs=3, sync=bow.SMA(restart=None), loggers=[recorder],
        scheduler=functools.partial(StepLR, step_size=1, gamma=0.1),
    )  # fmt: skip
    assert recorder.of_kind("event") == []


def test_loggers_get_all_records_in_order_and_are_closed_once(
    train: Train, model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.training.run_records.RECORD_INTERVAL_S", 0.0)
    recorder = Recorder()
    result = train(model, data, batch_size=12, epochs=2, validation=data, loggers=[recorder])
    kinds = [record["kind"] for record in recorder.records]
    assert kinds == ["start", "rounds", "rounds", "epoch", "rounds", "rounds", "epoch", "end"]
    assert recorder.closed == 1
    times = [record["time_s"] for record in recorder.records]
    assert times == sorted(times)
    assert times[0] >= 0
    assert recorder.of_kind("epoch") == result.history
    start = recorder.records[0]
    assert {key: start[key] for key in ("learners", "engine", "rounds", "epochs", "parameters", "model", "device")} == {
        "learners": 2, "engine": "eager", "rounds": 4, "epochs": 2, "parameters": 18, "model": "Linear",
        "device": "cpu",
    }  # fmt: skip
    end = recorder.records[-1]
    assert (end["round"], end["samples"], end["learner_restarts"]) == (4, 96, 0)
    assert end["accuracy"] == result.metrics["accuracy"]
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == kinds


class Failing(Recorder):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def log(self, record: Mapping[str, Any]) -> None:
        super().log(record)
        if self.where == "log":
            raise OSError("disk full")

    def close(self) -> None:
        super().close()
        if self.where == "close":
            raise OSError("disk full")


@pytest.mark.parametrize("where", ["log", "close"])
def test_a_logger_that_fails_does_not_end_the_training(train: Train, model: nn.Module, data: Data, where: str) -> None:
    failing, recorder = Failing(where), Recorder()
    with pytest.warns(UserWarning, match="Failing failed and was disabled .*disk full"):
        result = train(model, data, epochs=2, loggers=[failing, recorder])
    assert len(result.history) == 2
    assert recorder.of_kind("end")
    assert len(failing.records) == (1 if where == "log" else len(recorder.records))
    assert failing.closed == recorder.closed == 1


def test_loggers_are_closed_when_training_fails(train: Train, model: nn.Module, data: Data) -> None:
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError):
        train(model, data, callbacks=[Behind(lambda run: 1 / 0)], loggers=[recorder])
    assert recorder.closed == 1


def test_the_run_directory_holds_settings_records_report_and_model(
    model: nn.Module, data: Data, tmp_path: Path
) -> None:
    result = bow.train(
        model,
        data,
        cross_entropy,
        learners=2,
        engine="eager",
        batch_size=4,
        epochs=2,
        seed=5,
        validation=data,
        run=bow.Run(tmp_path / "a" / "run", progress=False),
        devices="cpu",
    )
    assert result.run_dir == tmp_path / "a" / "run"
    assert {path.name for path in result.run_dir.iterdir()} == {
        "config.yaml", "metrics.jsonl", "report.html", "model.safetensors",
    }  # fmt: skip
    assert len({path.stat().st_mode for path in result.run_dir.iterdir()}) == 1  # who may read one may read all
    config = yaml.safe_load((result.run_dir / "config.yaml").read_text())
    assert (config["learners"], config["batch_size"], config["seed"], config["epochs"]) == (2, 4, 5, 2)
    assert config["sync"].startswith("SMA(")
    assert "lr=0.1" in config["optimizer"]
    assert (result.run_dir / "report.html").stat().st_size > 10_000


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[Path]:
    """Directories whose disk is full for models."""
    folders: set[Path] = set()

    def save(model: nn.Module, path: str) -> None:
        Path(path).write_bytes(b"the first part")
        if Path(path).parent in folders:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_model(model, path)

    monkeypatch.setattr("bow.training.result.save_model", save)
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return folders


def test_a_model_that_does_not_fit_on_the_disk_is_in_a_place_that_is_told(
    train: Train, model: nn.Module, data: Data, full: set[Path], tmp_path: Path
) -> None:
    full.add(tmp_path / "run")
    (tmp_path / "here" / "run.safetensors").write_bytes(b"another's")
    told = r"model cannot be written to .*run/model.safetensors \(the disk is full\); it is in .*here/run2.safetensors"
    with pytest.warns(UserWarning, match=told):
        result = train(model, data)
    assert result.model_path == tmp_path / "here" / "run2.safetensors"
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.yaml", "metrics.jsonl"}
    load_model(model, result.model_path)
    assert torch.equal(model.weight, result.model.weight)


def test_a_run_directory_that_has_gone_does_not_take_the_model_with_it(
    train: Train,
    model: nn.Module,
    data: Data,
    full: set[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Gone:
        def on_epoch_end(self, run: Any, record: Any) -> None:
            shutil.rmtree(run.run_dir)

    full.add(tmp_path / "here")
    with pytest.warns(
        UserWarning, match=r"\(No such file or directory\); it is in .*temporary/.*/run.safetensors"
    ) as caught:
        result = train(model, data, callbacks=[Gone()], progress=True)
    assert result.model_path is not None
    assert result.model_path.exists()
    assert [str(each.message) for each in caught if "cannot be written" in str(each.message)] == [
        f"the model cannot be written to {tmp_path}/run/model.safetensors (No such file or directory); it is in "
        f"{result.model_path} instead"
    ]
    assert "it is in" not in capsys.readouterr().out


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"calls": 0}

    def set_extra_state(self, state: Any) -> None:
        pass


class Complex(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("angles", torch.zeros(3, dtype=torch.complex128))


class Calls(nn.Linear):
    """Counts its calls in Python, and says so in its state dict."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.calls)

    def set_extra_state(self, state: Tensor) -> None:
        self.calls = int(state)


def test_extra_state_is_that_of_training_in_the_result_and_in_checkpoints(
    train: Train, data: Data, tmp_path: Path
) -> None:
    settings = {
        "validation": bow.Validation(data, metrics=[Given("worse", range(0, -100, -1))]),
        "checkpoint_every": 6,
        "learners": 1,
    }
    first = train(Calls(5, 3), data, epochs=1, **settings)
    assert first.model.calls == 12
    result = train(Calls(5, 3), data, epochs=2, run_dir=tmp_path / "other", resume=first.run_dir, **settings)
    assert (result.model.calls, result.best.model.calls) == (24, 12)
    loaded = Calls(5, 3)
    assert result.model_path is not None
    load_model(loaded, result.model_path)
    assert loaded.calls == 24


@pytest.mark.parametrize("kind", [Extra, Complex])
def test_a_model_that_safetensors_does_not_take_is_in_the_result(
    train: Train, data: Data, full: set[Path], tmp_path: Path, kind: Any
) -> None:
    with pytest.warns(UserWarning, match="safetensors holds dense tensors .*; it is not saved"):
        result = train(kind(5, 3), data)
    assert result.model_path is None
    assert len(result.history) == 1
    assert not list(tmp_path.rglob("*.safetensors*"))


def test_a_model_that_fits_nowhere_is_in_the_result(
    train: Train,
    model: nn.Module,
    data: Data,
    full: set[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path / "temporary"))
    full |= {tmp_path / name for name in ("run", "here", "temporary")}
    recorder = Recorder()
    with pytest.warns(UserWarning, match="nor to the current directory or a temporary one; it is not saved") as caught:
        result = train(model, data, loggers=[recorder])
    assert [record["message"] for record in recorder.of_kind("event")] == [str(each.message) for each in caught]
    assert result.model_path is None
    assert len(result.history) == 1
    assert not list(tmp_path.rglob("*.safetensors*"))


@pytest.mark.parametrize("kind", ["batch norm", "tied", "channels last"])
def test_the_saved_model_loads_into_the_plain_model(train: Train, data: Data, kind: str) -> None:
    def build() -> nn.Module:
        if kind == "channels last":
            net = nn.Sequential(nn.Unflatten(1, (5, 1, 1)), nn.Conv2d(5, 3, (3, 2), padding=1), nn.AvgPool2d((1, 2)))
            return nn.Sequential(net, nn.Flatten()).to(memory_format=torch.channels_last)
        net = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5))
        if kind == "tied":
            net[2].weight = net[0].weight
        return net

    result = train(build(), data, epochs=2)
    loaded = build()
    load_model(loaded, str(result.run_dir / "model.safetensors"))
    assert_equal_models(loaded, result.model)
    if kind == "tied":
        saved = set(load_file(result.run_dir / "model.safetensors"))
        assert len({"0.weight", "2.weight"} & saved) == 1, "tied weights are written once"


def poison(data: Data) -> tuple[Tensor, Tensor]:
    inputs = data[0].clone()
    inputs[30] = torch.nan
    return inputs, data[1]


def test_a_learner_that_diverges_starts_again_and_training_goes_on(train: Train, model: nn.Module, data: Data) -> None:
    recorder = Recorder()
    with pytest.warns(UserWarning, match="it restarts from the central model"):
        result = train(model, poison(data), epochs=5, validation=data, loggers=[recorder])
    assert result.num_restarts == 5, "once an epoch"
    assert result.metrics["accuracy"] > 0.7
    assert [event["event"] for event in recorder.of_kind("event")] == ["learner restarted"] * 5
    assert recorder.of_kind("end")[0]["learner_restarts"] == 5
    assert all(0 < record["train_loss"] < 10 for record in result.history)


def test_divergence_may_be_an_error(train: Train, model: nn.Module, data: Data) -> None:
    with pytest.raises(DivergenceError, match=r"learner \d's loss was nan in round \d; lower the learning rate"):
        train(model, poison(data), on_nan="error")


def half_poisoned(data: Data) -> tuple[Tensor, Tensor]:
    inputs = data[0].clone()
    inputs[torch.arange(48) % 3 == 0] = torch.nan
    return inputs, data[1]


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_training_ends_where_more_than_half_of_an_epoch_comes_to_nothing(
    train: Train, model: nn.Module, data: Data, tmp_path: Path, engine: str
) -> None:
    with (
        pytest.warns(UserWarning, match="restarts"),
        pytest.raises(DivergenceError, match=r"\d+ of the last 12 steps were discarded.*continue"),
    ):
        train(model, half_poisoned(data), epochs=5, engine=engine)
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert [record["epoch"] for record in records if record["kind"] == "epoch"] == [1]


@pytest.mark.filterwarnings("ignore:.*restarts")
def test_training_goes_on_where_that_is_asked_for(train: Train, model: nn.Module, data: Data, tmp_path: Path) -> None:
    result = train(model, half_poisoned(data), epochs=5, on_nan="continue")
    assert result.num_restarts > 30
    assert len(result.history) == 5
    result = train(model, (data[0] * torch.nan, data[1]), epochs=5, on_nan="continue", run_dir=tmp_path / "nothing")
    assert result.num_restarts == 60


def test_what_is_not_finite_in_the_validation_data_is_told(
    train: Train, model: nn.Module, data: Data, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"validation": poison(data), "eval_batch_size": 16, "epochs": 2}
    with pytest.warns(UserWarning, match="loss is nan in batch 1 of the validation data: 5 values .* correct the data"):
        result = train(model, data, progress=True, **settings)
    assert math.isnan(result.metrics["loss"])
    assert result.metrics["accuracy"] > 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert all("validation loss nan" in line for line in lines)
    with (
        pytest.warns(UserWarning, match="loss is nan"),
        pytest.raises(DataError, match="the target cannot be reached: loss is nan in batch 1"),
    ):
        train(model, data, target={"loss": 0.1}, run_dir=tmp_path / "second", **settings)


EVALUATING = {"learners": 3, "batch_size": 4, "epochs": 2, "evaluate_every": 0.25}
"""Rounds of 12 samples, of 48 in an epoch."""


def test_the_central_model_is_evaluated_within_epochs(train: Train, model: nn.Module, data: Data) -> None:
    recorder = Recorder()
    result = train(model, data, validation=data, loggers=[recorder], **EVALUATING)
    evaluations = recorder.of_kind("evaluation")
    assert [record["samples"] for record in evaluations] == [12, 24, 36, 60, 72, 84]
    assert [record["epoch"] for record in evaluations] == [0.25, 0.5, 0.75, 1.25, 1.5, 1.75]
    assert all({"loss", "accuracy", "learners", "lr"} <= set(record) for record in evaluations)
    assert [record["samples"] for record in result.history] == [48, 96]


def test_rounds_that_pass_several_evaluations_are_followed_by_one(train: Train, model: nn.Module, data: Data) -> None:
    recorder = Recorder()
    train(model, data, validation=data, loggers=[recorder], **{**EVALUATING, "batch_size": 7})
    assert [record["samples"] for record in recorder.of_kind("evaluation")] == [21, 42, 84]  # with 63 the epoch ends


def test_evaluating_within_epochs_does_not_change_the_training(train: Train, data: Data, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    results = [
        train(model, data, validation=data, run_dir=tmp_path / str(every), **{**EVALUATING, "evaluate_every": every})
        for every in (1, 0.25)
    ]
    assert_equal_models(*(result.model for result in results))
    assert [r["loss"] for r in results[0].history] == [r["loss"] for r in results[1].history]


@pytest.mark.parametrize("policy", ["average", "recalibrate"])
def test_a_target_within_an_epoch_ends_the_training_with_a_record_of_it(train: Train, data: Data, policy: str) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    recorder = Recorder()
    settings = {**EVALUATING, "target": {"accuracy": 0.0}, "buffers": policy, "checkpoint_every": 1}
    result = train(model, data, validation=data, loggers=[recorder], **settings)
    assert [(record["samples"], record["epoch"]) for record in result.history] == [(12, 0.25)]
    assert result.history[-1]["accuracy"] == recorder.of_kind("evaluation")[-1]["accuracy"]
    assert recorder.of_kind("end")[0]["accuracy"] == result.history[-1]["accuracy"]
    assert result.time_to_target is not None
    assert [r["event"] for r in recorder.of_kind("event")].count("target reached") == 1
    again = train(model, data, validation=data, resume=result.run_dir, **settings)
    assert again.time_to_target is not None
    assert again.time_to_target <= result.time_to_target
    assert again.history[-1]["samples"] == 12
    further = {**settings, "target": None}
    assert train(model, data, validation=data, resume=result.run_dir, **further).history[-1]["samples"] == 96


def test_a_training_that_ends_where_it_was_evaluated_has_a_record_of_its_end(
    train: Train, model: nn.Module, data: Data
) -> None:
    result = train(model, data, validation=data, **{**EVALUATING, "steps": 6})
    assert [record["samples"] for record in result.history] == [48, 72]


def test_a_training_resumed_within_an_epoch_is_evaluated_at_the_same_rounds(
    train: Train, model: nn.Module, data: Data, tmp_path: Path
) -> None:
    recorders = [Recorder(), Recorder()]
    settings = {**EVALUATING, "checkpoint_every": 3}
    whole = train(model, data, validation=data, loggers=recorders[:1], **settings)
    (tmp_path / "copied.pt").write_bytes((whole.run_dir / "checkpoints" / "round_00000006.pt").read_bytes())
    settings |= {"resume": tmp_path / "copied.pt", "run_dir": tmp_path / "other", "loggers": recorders[1:]}
    resumed = train(model, data, validation=data, **settings)
    rounds = [[record["round"] for record in recorder.of_kind("evaluation")] for recorder in recorders]
    assert rounds[0] == [1, 2, 3, 5, 6, 7]
    assert rounds[1] == [7]
    assert [r["loss"] for r in resumed.history] == [r["loss"] for r in whole.history]


def test_data_of_unknown_length_have_no_evaluations_within_epochs(train: Train, model: nn.Module, data: Data) -> None:
    samples = Iterated([(torch.ones(5), 0)] * 400)
    with pytest.raises(SettingError, match=r"validation\.every=0\.5 needs data whose length is known"):
        train(model, samples, steps=3, validation=data, evaluate_every=0.5)


def test_learners_that_are_added_before_the_first_round_take_part_in_it(
    train: Train, model: nn.Module, data: Data
) -> None:
    class Adding(bow.Callback):
        def on_train_start(self, run: Any) -> None:
            run.replicas.resize(run.replicas.learners + 1)

    for kind in (data, DataLoader(TensorDataset(*data), batch_size=4)):
        result = train(model, kind, callbacks=[Adding()], run_dir=None)
        assert result.learners == 3
        assert result.history[-1]["samples"] == 48
        assert result.history[-1]["round"] == 4


def test_throughput_leaves_warm_up_and_evaluation_out(
    train: Train, model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def clock() -> float:
        return now

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    def slow(run: Any) -> None:
        wait({1: 10.0, 2: 9.0, 3: 8.0, 4: 2.5}.get(run.round, 0.5))  # a quarter of twelve rounds is warm-up

    def slow_evaluation(*args: Any) -> dict[str, float]:
        wait(100.0)
        return {}

    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr("bow.training.evaluation.Evaluator.__call__", slow_evaluation)
    result = train(model, data, epochs=2, validation=data, callbacks=[Behind(slow)])
    assert result.throughput == pytest.approx(9 * 8 / (2.5 + 8 * 0.5))
    assert result.seconds == pytest.approx(27 + 2.5 + 8 * 0.5 + 2 * 100)
