from __future__ import annotations

import errno
import functools
import hashlib
import io
import itertools
import os
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bow
from bow.errors import BowError, CheckpointError, DataError, RunDirectoryError, SettingError
from bow.observe.records import read_records
from bow.observe.report import write_report
from bow.testing import FakeDevice
from bow.training.checkpoint import TRAILER, CheckpointTimer, load_checkpoint, save_checkpoint
from tests.training.blueprints import Behind, Data, Given, StopAfter, Train, assert_equal_models, linear

MOMENTUM = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.01)


def test_automatic_checkpoints_are_a_minute_apart_and_take_a_hundredth_of_the_time() -> None:
    timer = CheckpointTimer(1000, now_s=0.0)
    assert (timer.is_due(59.0), timer.is_due(61.0)) == (False, True)
    timer.wrote(61.0, 64.0)
    assert (timer.is_due(360.0), timer.is_due(365.0)) == (False, True)
    of_several = CheckpointTimer(1000, now_s=0.0, is_alone=False)
    assert (of_several.is_due(4.0), of_several.is_due(6.0)) == (False, True)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))


def warm_up(optimizer: torch.optim.Optimizer) -> SequentialLR:
    return SequentialLR(optimizer, [LinearLR(optimizer, total_iters=4), CosineAnnealingLR(optimizer, 8)], [4])


def checkpoints(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


SETTINGS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": MOMENTUM, "scheduler": functools.partial(StepLR, step_size=1, gamma=0.3)},
    "momentum, warm-up per round": {"optimizer": MOMENTUM, "scheduler": warm_up, "per_round": True},
    "plateau of the training loss": {
        "optimizer": MOMENTUM,
        "scheduler": functools.partial(ReduceLROnPlateau, patience=0, threshold=0.5),
    },
    "AdamW": {"optimizer": ADAMW, "sync": bow.EASGD(every=3)},
    "SSGD": {"optimizer": ADAMW, "sync": bow.SSGD(), "clip_norm": 0.5},
    "local SGD": {"sync": bow.LocalSGD(every=5)},
    "DiLoCo": {"sync": bow.DiLoCo(every=4)},
    "ASGD": {"sync": bow.ASGD()},
    "independent": {"sync": bow.Independent()},
    "three learners": {"learners": 3, "buffers": "first"},
    "one learner": {"learners": 1},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("crash", [8, 14])
@pytest.mark.parametrize("loader", [False, True], ids=["tensors", "loader"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_resumed_training_ends_as_if_never_interrupted(
    train: Train, data: Data, tmp_path: Path, name: str, loader: bool, crash: int
) -> None:
    def start(run_dir: str, **more: Any) -> bow.Result:
        samples = DataLoader(TensorDataset(*data), batch_size=4, shuffle=True) if loader else data
        more["run_dir"] = tmp_path / run_dir
        return train(net(), samples, epochs=4, checkpoint_every=5, seed=3, **SETTINGS[name], **more)

    expected = start("whole")
    with pytest.raises(KeyboardInterrupt):
        start("crashed", callbacks=[StopAfter(crash)])
    result = start("crashed", resume="auto")
    assert_equal_models(result.model, expected.model)
    for record, wanted in zip(result.history, expected.history, strict=True):
        for field in ("epoch", "round", "samples", "train_loss", "lr", "learners"):
            assert record[field] == wanted[field], field


@pytest.mark.parametrize("engine", ["graph", "graph+round"])
@pytest.mark.parametrize(("loader", "epochs", "crash"), [(False, 1, 11), (True, 3, 23)], ids=["tensors", "loader"])
def test_a_short_batch_may_be_the_first_behind_a_crash(
    train: Train, data: Data, tmp_path: Path, loader: bool, epochs: int, crash: int, engine: str
) -> None:
    def start(run_dir: str, **more: Any) -> bow.Result:
        some = tuple(each[:46] for each in data)  # eleven batches of four and one of two
        samples = DataLoader(TensorDataset(*some), batch_size=4, shuffle=True) if loader else some
        settings = {"engine": engine, "learners": 1, "checkpoint_every": crash, "run_dir": tmp_path / run_dir}
        settings["devices"] = "cpu" if engine == "graph" else FakeDevice()
        return train(net(), samples, epochs=epochs, seed=3, **settings, **more)

    expected = start("whole")
    with pytest.raises(KeyboardInterrupt):
        start("crashed", callbacks=[StopAfter(crash + 1)])  # whose checkpoint is that of the round before
    result = start("crashed", resume="auto")
    assert result.engine == expected.engine == engine
    assert_equal_models(result.model, expected.model)


class Lengths(nn.Module):
    """Takes sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs).mean(1)


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """Batches of sequences; those of a batch have one length."""

    lengths = (5, 6, 6, 5, 7, 8, 8, 7, 9, 6, 9, 7)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randn(4, self.lengths[index], 5, generator=generator)
        return inputs, torch.randint(3, (4,), generator=generator)


@pytest.mark.sample(5)
@pytest.mark.parametrize("engine", ["graph", "graph+round"])
@pytest.mark.parametrize("crash", range(1, 11))
def test_what_is_captured_does_not_depend_on_where_a_training_was_interrupted(
    train: Train, tmp_path: Path, engine: str, crash: int
) -> None:
    """Captured and in `eager`, learning tasks draw other numbers."""

    def start(run_dir: str, **more: Any) -> bow.Result:
        batches = DataLoader(Sequences(), batch_size=None)
        settings = {"engine": engine, "learners": 1, "checkpoint_every": 1, "run_dir": tmp_path / run_dir}
        settings["devices"] = "cpu" if engine == "graph" else FakeDevice()
        return train(Lengths(), batches, batch_size=None, epochs=1, seed=3, **settings, **more)

    expected = start("whole")
    with pytest.raises(KeyboardInterrupt):
        start("crashed", callbacks=[StopAfter(crash + 1)])
    result = start("crashed", resume="auto")
    assert result.engine == expected.engine == engine
    assert_equal_models(result.model, expected.model)


@pytest.mark.parametrize("built", [True, False])
def test_a_training_by_the_rule_goes_on_with_its_engine_whatever_is_built_by_then(
    train: Train, data: Data, tmp_path: Path, built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(run_dir: str, built: bool, **more: Any) -> bow.Result:
        monkeypatch.setattr("bow.engines.choice.is_built", lambda: built)
        tuner = bow.Tuner(share=1e-6, cache=False)
        settings = {"engine": "auto", "learners": 2, "steps": 100, "tuner": tuner, "checkpoint_every": 10}
        return train(net(), data, run_dir=tmp_path / run_dir, **settings, **more)  # engines draw other numbers for it

    expected = start("whole", built)
    with pytest.raises(KeyboardInterrupt):
        start("crashed", built, callbacks=[StopAfter(25)])
    result = start("crashed", not built, resume="auto")
    assert result.engine == expected.engine == ("graph" if built else "eager")
    assert_equal_models(result.model, expected.model)


@pytest.mark.parametrize("how", ["auto", "run directory", "checkpoint", "older checkpoint", "checkpoints"])
def test_a_training_is_resumed_from_whatever_names_its_checkpoint(
    train: Train, data: Data, tmp_path: Path, how: str
) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(net(), data, epochs=3, checkpoint_every=3, callbacks=[StopAfter(8)])
    assert checkpoints(run) == ["round_00000003.pt", "round_00000006.pt"]
    resume = {
        "auto": "auto",
        "run directory": run,
        "checkpoint": run / "checkpoints" / "round_00000006.pt",
        "older checkpoint": str(run / "checkpoints" / "round_00000003.pt"),
        "checkpoints": run / "checkpoints",
    }[how]
    starts: list[int] = []

    class Start:
        def on_train_start(self, run: Any) -> None:
            starts.append(run.round)

    named = {"run_dir": run if how == "auto" else None}  # None: the directory of the checkpoint
    result = train(net(), data, epochs=3, resume=resume, callbacks=[Start()], **named)
    assert starts == [3 if how == "older checkpoint" else 6]
    assert result.run_dir == run
    whole = train(net(), data, epochs=3, run_dir=tmp_path / "whole").model
    assert torch.equal(result.model[0].weight, whole[0].weight)
    assert [record["epoch"] for record in result.history] == [1, 2, 3]


def test_auto_starts_from_the_beginning_where_there_is_nothing(train: Train, data: Data, tmp_path: Path) -> None:
    result = train(net(), data, resume="auto", run_dir=tmp_path / "new")
    assert result.history[-1]["round"] == 6


def test_a_finished_training_is_resumed_with_more_epochs(train: Train, data: Data, tmp_path: Path) -> None:
    train(net(), data, epochs=2, checkpoint_every=6)
    result = train(net(), data, epochs=3, resume="auto")
    whole = train(net(), data, epochs=3, run_dir=tmp_path / "whole")
    assert torch.equal(result.model[0].weight, whole.model[0].weight)


def test_a_training_that_reached_its_target_does_not_go_on(train: Train, data: Data) -> None:
    settings = {"epochs": 5, "checkpoint_every": 6, "validation": data, "target": {"accuracy": 0.1}}
    first = train(net(), data, **settings)
    again = train(net(), data, resume="auto", **settings)
    assert [record["round"] for record in again.history] == [record["round"] for record in first.history] == [6]
    assert again.time_to_target == pytest.approx(first.time_to_target, abs=0.5)
    assert torch.equal(again.model[0].weight, first.model[0].weight)
    higher = train(net(), data, resume="auto", **{**settings, "target": {"loss": 1e-9}})
    assert len(higher.history) == 5


def test_a_resumed_training_keeps_its_number_of_learners(train: Train, data: Data) -> None:
    def grow(run: Any) -> None:
        if run.round == 2:
            run.replicas.resize(run.replicas.learners + 1)

    train(net(), data, checkpoint_every=4, callbacks=[Behind(grow)])
    assert train(net(), data, epochs=2, resume="auto").learners == 3


def test_only_the_newest_checkpoints_are_kept(train: Train, data: Data, tmp_path: Path) -> None:
    train(net(), data, epochs=2, checkpoint_every=1)
    assert checkpoints(tmp_path / "run") == ["round_00000011.pt", "round_00000012.pt"]


def test_a_short_training_writes_no_checkpoints(train: Train, data: Data, tmp_path: Path) -> None:
    seen: list[bool] = []
    train(net(), data, callbacks=[Behind(lambda run: seen.append((run.run_dir / "checkpoints").exists()))])
    assert not any(seen)


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints behind every round, as if rounds took as long as it takes until one is due."""
    monkeypatch.setattr("bow.training.checkpoint.CheckpointTimer.is_due", lambda timer, now_s: True)


@pytest.mark.usefixtures("always_due")
def test_checkpoints_are_written_by_themselves_and_go_when_the_training_has_ended(
    train: Train, data: Data, tmp_path: Path
) -> None:
    whole = train(net(), data, epochs=3, run_dir=tmp_path / "whole", checkpoint_every=None)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(net(), data, epochs=3, callbacks=[StopAfter(8)])
    assert checkpoints(tmp_path / "run") == ["round_00000006.pt", "round_00000007.pt"]
    assert "checkpoint of round 7; resume with bow.train(..., run=bow.Run(" in caught.value.__notes__[0]
    train(net(), data, epochs=1, resume="auto")  # over before it has begun: nothing was trained
    assert checkpoints(tmp_path / "run") == ["round_00000006.pt", "round_00000007.pt"]
    resumed = train(net(), data, epochs=3, resume="auto")
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert_equal_models(resumed.model, whole.model)


@pytest.mark.usefixtures("always_due")
def test_checkpoints_that_nobody_asked_for_leave_room_for_the_model(
    train: Train, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(model: nn.Module, path: str) -> None:
        if len(checkpoints(tmp_path / "run")) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_model(model, path)

    monkeypatch.setattr("bow.training.result.save_model", save)
    assert train(net(), data).model_path == tmp_path / "run" / "model.safetensors"


@pytest.mark.usefixtures("always_due")
def test_checkpoints_that_were_asked_for_stay(train: Train, data: Data, tmp_path: Path) -> None:
    train(net(), data, checkpoint_every=3)
    train(net(), data, epochs=2, resume="auto")
    assert checkpoints(tmp_path / "run")


class Sick(TensorDataset):
    """Data of which a sample cannot be read, once."""

    def __init__(self, data: Data, at: int) -> None:
        super().__init__(*data)
        self.left = at

    def __getitem__(self, index: int) -> Any:
        self.left -= 1
        if not self.left:
            raise OSError("the picture is damaged")
        return super().__getitem__(index)


@pytest.mark.parametrize("where", ["data", "loader", "step"])
def test_an_error_of_the_users_own_leaves_a_checkpoint_of_the_round_before(
    train: Train, data: Data, tmp_path: Path, where: str
) -> None:
    calls = 0

    def step(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += where == "step"
        if calls == 16:  # the second learner of round 8
            raise OSError("the picture is damaged")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def start(run_dir: str, at: int, **more: Any) -> bow.Result:
        sick = Sick(data, at)
        samples = DataLoader(sick, batch_size=4, shuffle=True) if where == "loader" else sick
        return train(net(), samples, step=step, epochs=3, optimizer=MOMENTUM, run_dir=tmp_path / run_dir, **more)

    with pytest.raises(OSError, match="the picture is damaged") as caught:
        start("run", -1 if where == "step" else 70)
    kept = int(checkpoints(tmp_path / "run")[0][6:14])
    assert kept >= 7
    assert f"checkpoint of round {kept}" in caught.value.__notes__[0]
    calls = -1000
    resumed, whole = start("run", -1, resume="auto"), start("whole", -1)
    assert_equal_models(resumed.model, whole.model)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("damage", ["cut off", "garbage", "empty", "something else"])
def test_a_damaged_checkpoint_is_refused(train: Train, data: Data, tmp_path: Path, damage: str) -> None:
    train(net(), data, checkpoint_every=6)
    path = tmp_path / "run" / "checkpoints" / "round_00000006.pt"
    content = path.read_bytes()
    path.write_bytes({"cut off": content[: len(content) // 2], "garbage": b"garbage" * 99}.get(damage, b""))
    if damage == "something else":
        torch.save({"weights": torch.zeros(3)}, path)
    records = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(CheckpointError, match=r"round_00000006.pt is not a readable checkpoint.*; resume from"):
        train(net(), data, resume="auto")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == records


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"replicas": {}}, "not a checkpoint of this version"),
        ([1, 2], "not a checkpoint of this version"),
        ({"replicas": Evil()}, "not a readable checkpoint"),
    ],
    ids=["empty", "list", "evil"],
)
def test_what_is_no_checkpoint_of_bow_is_refused_without_torchs_advice_to_trust_it(
    train: Train, data: Data, tmp_path: Path, content: Any, what: str
) -> None:
    file = io.BytesIO()
    torch.save(content, file)
    checksum = hashlib.sha256(file.getvalue()).hexdigest().encode()
    (tmp_path / "x.pt").write_bytes(file.getvalue() + TRAILER + checksum)
    with pytest.raises(CheckpointError, match=rf"x\.pt is {what}.*; resume from") as caught:
        train(net(), data, resume=tmp_path / "x.pt")
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_lacks_a_part_is_of_another_version(train: Train, data: Data, tmp_path: Path) -> None:
    folder = train(net(), data, checkpoint_every=6).run_dir / "checkpoints"
    state = torch.load(folder / "round_00000006.pt", weights_only=True)
    del state["best"]
    save_checkpoint(folder, 6, state)
    with pytest.raises(CheckpointError, match="not a checkpoint of this version of bow; resume from one that is"):
        train(net(), data, resume="auto")


def test_a_checkpoint_of_bow_with_damaged_parts_is_one_sentence(train: Train, data: Data, tmp_path: Path) -> None:
    train(net(), data, checkpoint_every=6)
    path = tmp_path / "run" / "checkpoints" / "round_00000006.pt"
    state = torch.load(path, weights_only=True)
    del state["replicas"]["group"]["learners"]
    save_checkpoint(path.parent, 6, state)
    with pytest.raises(CheckpointError, match=r"is damaged .*'learners'.*; resume from"):
        train(net(), data, resume="auto")


def test_data_that_fail_where_a_training_goes_on_are_not_called_damage(train: Train, data: Data) -> None:
    class Pictures(Dataset[Any]):
        are_broken = False

        def __len__(self) -> int:
            return 48

        def __getitem__(self, index: int) -> Any:
            if self.are_broken and index >= 16:
                raise ValueError("the picture cannot be read")
            return data[0][index], data[1][index]

    pictures = Pictures()
    train(net(), DataLoader(pictures, batch_size=4), batch_size=None, steps=4, checkpoint_every=4)
    pictures.are_broken = True
    with pytest.raises(ValueError, match="the picture cannot be read"):
        train(net(), DataLoader(pictures, batch_size=4), batch_size=None, steps=8, resume="auto")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "round_00000001.tmp").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"round_00000001.pt cannot be written \(the disk is full\); free space"):
        save_checkpoint(tmp_path, 1, {"a": torch.ones(100_000)})
    assert list(tmp_path.iterdir()) == []


def test_the_next_training_deletes_what_a_killed_one_was_writing(train: Train, data: Data, tmp_path: Path) -> None:
    train(net(), data, checkpoint_every=6)
    for name in ("checkpoints/round_00000009.tmp", "model.safetensors.tmp"):
        (tmp_path / "run" / name).write_bytes(b"part")
    train(net(), data, epochs=2, resume="auto")
    assert list((tmp_path / "run").rglob("*.tmp")) == []


def test_a_second_training_in_a_directory_that_is_in_use_is_refused(train: Train, data: Data, tmp_path: Path) -> None:
    refused: list[str] = []

    def second(run: Any) -> None:
        if run.round == 4:
            with pytest.raises(RunDirectoryError) as caught:
                train(net(), data, resume="auto", checkpoint_every=1)
            refused.append(str(caught.value))
            assert write_report(run.run_dir).exists()

    train(net(), data, checkpoint_every=3, callbacks=[Behind(second)])
    assert "in use by another training (process" in refused[0]
    assert checkpoints(tmp_path / "run") == ["round_00000003.pt", "round_00000006.pt"]
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert [record["kind"] for record in records].count("start") == 1


def test_a_finished_run_without_checkpoints_keeps_its_model(train: Train, data: Data, tmp_path: Path) -> None:
    train(net(), data)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(RunDirectoryError, match="holds the model of a run that has ended, and no checkpoint"):
        train(nn.Linear(5, 3), data, resume="auto")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_the_one_before_a_damaged_checkpoint_is_taken(train: Train, data: Data, tmp_path: Path) -> None:
    whole = train(net(), data, checkpoint_every=3)
    last = tmp_path / "run" / "checkpoints" / "round_00000006.pt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    with pytest.warns(UserWarning, match="00006.pt is not a readable checkpoint"):
        resumed = train(net(), data, resume="auto")
    assert [record["round"] for record in resumed.history] == [6]
    assert_equal_models(resumed.model, whole.model)
    assert checkpoints(tmp_path / "run") == ["round_00000003.pt"]


def deeper() -> nn.Module:
    """Another model of as many parameters."""
    model = net()
    model[0] = nn.Sequential(nn.Linear(5, 8))
    return model


@pytest.mark.parametrize(
    ("build", "samples", "settings", "error", "message"),
    [
        (net, 48, {"seed": 1}, SettingError, "made with seed=0, got seed=1; resume with seed=0"),
        (net, 40, {}, DataError, "48 training samples and the data have 40; resume with the same data"),
        (linear, 48, {}, CheckpointError, "made with parameters 91, this training has 18; resume with the same"),
        (deeper, 48, {}, CheckpointError, "resume with the same model"),
        (net, 48, {"optimizer": ADAMW}, CheckpointError, "made with optimizer 'SGD', this training has 'AdamW'"),
        (
            net,
            48,
            {"sync": bow.SSGD()},
            CheckpointError,
            "made with sync 'SMA', this training has 'SSGD'; resume with the same sync",
        ),
    ],
    ids=["seed", "data", "model", "as many parameters", "optimizer", "sync"],
)
def test_a_checkpoint_of_another_training_is_refused_and_nothing_is_written(
    train: Train,
    data: Data,
    tmp_path: Path,
    build: Callable[[], nn.Module],
    samples: int,
    settings: dict[str, Any],
    error: type[BowError],
    message: str,
) -> None:
    run = tmp_path / "run"
    train(net(), data, checkpoint_every=6)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    some = data[0][:samples], data[1][:samples]
    with pytest.raises(error, match=message):
        train(build(), some, resume="auto", **settings)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    with pytest.raises(error, match=message):
        train(build(), some, resume=run, run_dir=tmp_path / "elsewhere", **settings)
    assert not (tmp_path / "elsewhere").exists()


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "batch size": ({"batch_size": 8}, "started with batch_size=4, got batch_size=8; it continues with the new one"),
    "precision": (
        {"precision": "bfloat16"},
        "precision=None, got engine.precision='bfloat16'; it continues with the new one",
    ),
    "loss": ({"loss": nn.functional.multi_margin_loss}, "loss='cross_entropy', got loss='multi_margin_loss'; it"),
    "averaging": (
        {"sync": bow.SMA(mu=0.9)},
        'started with sync="SMA.*mu=0.5.*, got sync="SMA.*mu=0.9.*; it continues with the',
    ),
    "clipping": ({"clip_norm": 1.0}, "clip_norm=None, got clip_norm=1.0; it continues with the new one"),
    "decay": (
        {"scheduler": functools.partial(StepLR, step_size=2)},
        r"scheduler='StepLR\(step_size=1\)', got .*; it continues with that of its checkpoint",
    ),
    "no decay": ({"scheduler": None}, "got scheduler=None; it continues with the new one"),
    "data": ({}, "is given other data than it was started with"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_weights_does_not_change_in_silence(train: Train, data: Data, change: str) -> None:
    settings: dict[str, Any] = {
        "scheduler": functools.partial(StepLR, step_size=1),
        "loss": nn.functional.cross_entropy,
    }
    train(net(), data, checkpoint_every=6, **settings)
    changed, message = CHANGES[change]
    data = (data[0] + 1, data[1]) if change == "data" else data
    with pytest.warns(UserWarning, match=message) as said:
        resumed = train(net(), data, epochs=2, resume="auto", **{**settings, **changed})
    assert len(said) == 1
    assert resumed.history[-1]["samples"] == 96


def test_a_scheduler_of_another_kind_is_refused(train: Train, data: Data) -> None:
    train(net(), data, checkpoint_every=6, scheduler=functools.partial(StepLR, step_size=1))
    cosine = functools.partial(CosineAnnealingLR, T_max=4)
    with pytest.raises(SettingError, match="with scheduler StepLR, got CosineAnnealingLR; resume with the same one"):
        train(net(), data, epochs=2, resume="auto", scheduler=cosine)


def test_resuming_from_nowhere_is_refused(train: Train, data: Data, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoint; give a run directory or a checkpoint"):
        train(net(), data, resume=tmp_path / "absent")
    with pytest.raises(SettingError, match="got none; name it"):
        train(net(), data, resume="auto", run_dir=None)
    assert not (tmp_path / "run").exists()


def test_a_second_run_in_a_directory_is_refused(train: Train, data: Data, tmp_path: Path) -> None:
    train(net(), data)
    records = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(RunDirectoryError, match="already holds a run; name another one"):
        train(net(), data)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == records


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_training(
    train: Train, data: Data, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("in the way")
    with pytest.warns(UserWarning, match=r"the checkpoint cannot be written .*; free space"):
        result = train(net(), data, checkpoint_every=2)
    assert (result.run_dir / "model.safetensors").exists()
    records = read_records(result.run_dir / "metrics.jsonl")
    assert any(record.get("event") == "not written" for record in records)
    assert records[-1]["kind"] == "end"


@pytest.mark.parametrize("learners", [1, 4])
def test_training_goes_on_with_another_number_of_learners(
    learners: int, train: Train, data: Data, model: nn.Module
) -> None:
    first = train(model, data, checkpoint_every=2, steps=2)
    resumed = train(model, data, learners=learners, resume="auto", epochs=2)
    assert (first.learners, resumed.learners) == (2, learners)
    assert resumed.history[-1]["samples"] == 2 * len(data[0])


def test_numpys_numbers_do_not_make_a_checkpoint_unreadable(train: Train, data: Data) -> None:
    settings: dict[str, Any] = {
        "optimizer": functools.partial(torch.optim.SGD, lr=np.logspace(-2, -1, 3)[1]),
        "scheduler": functools.partial(torch.optim.lr_scheduler.MultiStepLR, milestones=np.array([1, 2])),
        "metrics": [Given("share", itertools.repeat(np.float64(0.5)))],  # as scikit-learn's functions return
        "validation": data,
    }
    first = train(net(), data, checkpoint_every=6, **settings)
    assert type(first.history[0]["share"]) is float
    assert len(train(net(), data, epochs=2, resume="auto", **settings).history) == 2


def test_numpys_numbers_are_saved_as_pythons_wherever_they_are(tmp_path: Path) -> None:
    counts = Counter({np.int64(5): 2})
    state = {
        "replicas": [(np.float32(0.5), {"a": np.array(3)}, np.array("a"))],
        np.str_("b"): counts,
        "c": torch.ones(2),
    }
    loaded = torch.load(save_checkpoint(tmp_path, 1, state), weights_only=True)
    assert loaded["replicas"] == [(0.5, {"a": 3}, "a")]
    assert loaded["b"] == counts
    assert type(loaded["b"]) is Counter
    assert type(state["replicas"][0][0]) is np.float32, "the state itself is not changed"


@pytest.mark.parametrize("array", [np.empty((0, 3)), np.ones((2, 3), order="F"), np.ones(2, "F")])
def test_arrays_of_numbers_come_back(tmp_path: Path, array: Any) -> None:
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, {"array": array}), {})["array"]
    assert loaded.dtype == array.dtype
    assert np.array_equal(loaded, array)


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([1, "a"], object), np.array(["2026-01-01"], "M8[D]"), np.ones(2, ">f8")]
)
def test_other_arrays_are_not_written(tmp_path: Path, array: Any) -> None:
    with pytest.raises(SettingError, match=r"arrays of numbers and plain values, got an array of .*; keep it out"):
        save_checkpoint(tmp_path, 1, {"scheduler": {"steps": [array]}})
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_continued_in_the_directory_of_another(train: Train, data: Data, tmp_path: Path) -> None:
    train(net(), data, checkpoint_every=6, run_dir=tmp_path / "a")
    train(net(), data, run_dir=tmp_path / "b")
    records = (tmp_path / "b" / "metrics.jsonl").read_text()
    with pytest.raises(RunDirectoryError, match="b already holds a run"):
        train(net(), data, epochs=2, resume=tmp_path / "a", run_dir=tmp_path / "b")
    assert (tmp_path / "b" / "metrics.jsonl").read_text() == records
    (tmp_path / "empty").mkdir()
    result = train(net(), data, epochs=2, resume=tmp_path / "a", run_dir=tmp_path / "empty")
    assert result.run_dir == tmp_path / "empty"
    assert train(net(), data, epochs=2, resume=tmp_path / "a", run_dir=tmp_path / "b" / ".." / "a").history


def test_going_on_from_an_older_checkpoint_deletes_the_newer_ones_of_that_run(
    train: Train, data: Data, tmp_path: Path
) -> None:
    train(net(), data, epochs=5, checkpoint_every=15)
    older = tmp_path / "run" / "checkpoints" / "round_00000015.pt"
    train(net(), data, epochs=5, resume=older, run_dir=tmp_path / "other", checkpoint_every=5)
    assert checkpoints(tmp_path / "run") == ["round_00000015.pt", "round_00000030.pt"]
    seen: list[list[str]] = []
    look = Behind(lambda run: seen.append(checkpoints(tmp_path / "run")))
    train(net(), data, epochs=3, resume=older, checkpoint_every=1, callbacks=[look])
    assert seen[0] == ["round_00000015.pt"]
    assert checkpoints(tmp_path / "run") == ["round_00000017.pt", "round_00000018.pt"]


def test_the_first_throughput_after_resuming_counts_new_samples_only(
    train: Train, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.training.run_records.RECORD_INTERVAL_S", 0.0)
    train(net(), data, epochs=2, checkpoint_every=12)
    seconds: list[float] = []
    clock = Behind(lambda run: seconds.append(run.position.meter.now))
    train(net(), data, epochs=3, resume="auto", callbacks=[clock])
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    first = next(record for record in records if record["kind"] == "rounds" and record["round"] == 13)
    assert first["samples_per_s"] <= 8 / seconds[0]


@pytest.mark.parametrize("scheduler", [None, warm_up])
def test_other_optimizer_settings_on_resuming_are_the_checkpoints_and_a_warning_says_so(
    train: Train, data: Data, scheduler: Any
) -> None:
    settings = {"scheduler": scheduler, "per_round": True}
    train(net(), data, checkpoint_every=6, optimizer=MOMENTUM, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(net(), data, epochs=2, checkpoint_every=6, resume="auto", optimizer=MOMENTUM, **settings)
    other = functools.partial(torch.optim.SGD, lr=0.025, momentum=0.5)
    with pytest.warns(
        UserWarning, match=r"started with .*momentum=0\.9.*, got .*momentum=0\.5.*; it continues with"
    ) as said:
        result = train(net(), data, epochs=3, resume="auto", optimizer=other, **settings)
    assert len(said) == 1
    if scheduler is None:
        assert [record["lr"] for record in result.history] == [0.1] * 3


@pytest.mark.filterwarnings("ignore:the training to be resumed was started with")
@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_first_round_that_fails_leaves_nothing_in_a_new_directory_and_everything_in_that_of_a_run(
    train: Train, data: Data, tmp_path: Path, resume: str | None
) -> None:
    def fail(model: nn.Module, batch: Any) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(net(), data, step=fail, resume=resume)
    assert list(tmp_path.iterdir()) == []
    train(net(), data, checkpoint_every=6)
    with pytest.raises(ZeroDivisionError):
        train(net(), data, step=fail, epochs=2, resume=tmp_path / "run", run_dir=tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(ZeroDivisionError):
        train(net(), data, step=fail, epochs=2, resume="auto")
    assert {"config.yaml", "metrics.jsonl"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_a_run_without_a_checkpoint_yet_begins_again_in_its_directory(train: Train, data: Data) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(net(), data, checkpoint_every=6, callbacks=[StopAfter(2)])
    assert train(net(), data, resume="auto").history[-1]["round"] == 6


def test_a_file_of_the_users_own_is_not_overwritten(train: Train, data: Data, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("mine")
    for resume in (None, "auto"):
        with pytest.raises(RunDirectoryError, match=r"already has a file config\.yaml"):
            train(net(), data, resume=resume)
    assert (tmp_path / "run" / "config.yaml").read_text() == "mine"


class Keep:
    """Keeps the state behind an epoch, and what it holds then."""

    def on_epoch_end(self, run: Any, record: Any) -> None:
        if run.epoch == 1:
            self.state = run.state()
            self.then = len(self.state["history"]), self.state["ema"]["average"].clone()


def test_a_state_that_a_callback_keeps_stays_what_it_was(train: Train, data: Data) -> None:
    keep = Keep()
    train(net(), data, validation=data, epochs=3, ema=0.9, callbacks=[keep])
    assert len(keep.state["history"]) == keep.then[0] == 1
    assert torch.equal(keep.state["ema"]["average"], keep.then[1])


class Table(torch.optim.lr_scheduler.LRScheduler):
    """Reads its factors from an array."""

    def __init__(self, optimizer: torch.optim.Optimizer, table: Any) -> None:
        self.table = table
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        return [rate * float(self.table[self.last_epoch]) for rate in self.base_lrs]


def test_arrays_in_the_state_of_a_scheduler_are_restored(train: Train, data: Data, tmp_path: Path) -> None:
    table = functools.partial(Table, table=np.linspace(1, 0.1, 9))
    expected = train(net(), data, epochs=3, scheduler=table, run_dir=tmp_path / "whole")
    train(net(), data, scheduler=table, checkpoint_every=6)
    result = train(net(), data, epochs=3, scheduler=table, resume="auto")
    assert [each["lr"] for each in result.history] == [each["lr"] for each in expected.history]


def halved(index: int) -> float:
    return 0.5**index


def test_a_checkpoint_that_could_not_be_read_again_is_not_written(train: Train, data: Data, tmp_path: Path) -> None:
    class Named(Table):
        def get_lr(self) -> list[float | Tensor]:
            return [rate * self.table(self.last_epoch) for rate in self.base_lrs]

    with pytest.warns(UserWarning, match=r"checkpoint cannot be written .*halved; .*training continues"):
        train(net(), data, scheduler=functools.partial(Named, table=halved), checkpoint_every=6)
    assert not checkpoints(tmp_path / "run")


def test_the_steps_of_an_epoch_that_were_discarded_are_counted_over_a_resume(
    train: Train, data: Data, tmp_path: Path
) -> None:
    bad = data[0].clone()
    bad[-4:] = torch.nan  # the last batch of the epoch

    def start(**more: Any) -> bow.Result:
        loader = DataLoader(TensorDataset(bad, data[1]), batch_size=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return train(net(), loader, batch_size=None, learners=1, checkpoint_every=11, **more)

    assert start(run_dir=tmp_path / "whole").num_restarts == 1
    with pytest.raises(KeyboardInterrupt):
        start(callbacks=[StopAfter(12)])
    assert start(resume="auto").num_restarts == 1, "one of twelve, not of one"
