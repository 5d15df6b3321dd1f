"""`bow.train` on a device with streams."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bow
from bow.data.stream import Indexed
from bow.engines import STREAM_ENGINES
from bow.observe.records import read_records
from bow.testing import FakeDevice
from tests.training.blueprints import Behind, Data, Train, assert_same_course

pytestmark = pytest.mark.usefixtures("_uncompiled")

FALLS = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=5)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "settings", [{}, {"sync": bow.LocalSGD(every=3)}, {"scheduler": FALLS, "per_round": True}], ids=str
)
@pytest.mark.parametrize("engine", STREAM_ENGINES)
def test_a_training_is_that_of_eager(
    train: Train, model: nn.Module, data: Data, tmp_path: Path, engine: str, settings: dict[str, Any]
) -> None:
    data = data[0].double(), data[1]
    common = {"learners": 2, "epochs": 3, "batch_size": 5, "validation": data, "checkpoint_every": 4, **settings}
    results = [
        train(model.double(), data, engine=name, devices=where, run_dir=tmp_path / name, **common)
        for name, where in (("eager", "cpu"), (engine, FakeDevice()))
    ]
    assert_same_course(*results)


def test_callbacks_see_the_learners_as_their_round_left_them(
    train: Train, model: nn.Module, data: Data, tmp_path: Path
) -> None:
    seen: dict[str, list[Any]] = {"eager": [], "graph": []}

    def look(run: Any) -> None:
        seen[run.replicas.engine].append((run.round, run.replicas.rounds, run.replicas.z.double().sum().item()))

    for name, where in (("eager", "cpu"), ("graph", FakeDevice())):
        settings = {"engine": name, "devices": where, "run_dir": tmp_path / name, "callbacks": [Behind(look)]}
        train(model.double(), (data[0].double(), data[1]), **settings)
    for one, other in zip(seen["eager"], seen["graph"], strict=True):
        assert one == pytest.approx(other, abs=1e-9)


def test_learning_tasks_gather_data_that_reside_on_the_device(
    train: Train, model: nn.Module, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[torch.Size] = []
    gather = Indexed.gather

    def noting(self: Indexed, by: Any) -> Any:
        gathered.append(self.indices.shape)
        return gather(self, by)

    monkeypatch.setattr(Indexed, "gather", noting)
    device = FakeDevice()
    train(model, data, engine="graph", devices=device, steps=20)
    assert set(gathered) == {torch.Size([4])}
    assert len(gathered) < 20  # graphs gather without Python
    assert device.replays > 20


def test_what_learners_hold_is_recorded_beside_what_was_predicted(train: Train, model: nn.Module, data: Data) -> None:
    result = train(model, data, engine="graph", devices=FakeDevice(), epochs=6)
    records = read_records(result.run_dir / "metrics.jsonl")
    (message,) = [record["message"] for record in records if record.get("event") == "memory"]
    assert re.fullmatch(r"2 learners: [\d.]+ \w+ in use on cpu, [\d.]+ \w+ predicted for .*", message)


@pytest.mark.parametrize("engine", ["graph", "eager"])
@pytest.mark.parametrize("settings", [{"ema": 0.8}, {"accumulate": 2}], ids=str)
def test_averaged_weights_and_batches_in_parts_are_those_of_eager(
    train: Train, model: nn.Module, data: Data, tmp_path: Path, engine: str, settings: dict[str, Any]
) -> None:
    data = data[0].double(), data[1]
    common = {"learners": 2, "epochs": 3, "batch_size": 5, "validation": data, **settings}
    results = [
        train(model.double(), data, engine=name, devices=where, run_dir=tmp_path / str(where), **common)
        for name, where in (("eager", "cpu"), (engine, FakeDevice()))
    ]
    assert_same_course(*results)
    ours, theirs = (result.best for result in results)
    assert ours.round == theirs.round
