"""How many members train at once: a rule of thumb on a CPU, a measurement on a GPU, no more than fit in memory."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bow
from bow.engines.memory import predict_memory
from bow.errors import SettingError
from bow.members import rows
from bow.members.config import SweepConfig
from bow.members.member import Member, Progress, check_variants
from bow.sync import SMA, Members
from bow.testing import FakeDevice
from bow.training.config import TrainConfig
from bow.training.trials import Request
from bow.training.tuning import Tuned
from tests.members.test_equality import (
    ADAMW,
    DATA,
    FLAT,
    LABELS,
    SGD,
    Listed,
    alone,
    assert_alike,
    assert_same,
    mlp,
    swept,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(("cores", "count"), [(1, 16), (2, 16), (6, 18), (12, 24), (16, 16), (40, 40)])
def test_the_rule_of_thumb_keeps_all_cores_busy(cores: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "available_cores", lambda: list(range(cores)))
    variants = check_variants(bow.grid(seed=range(50)))
    train = TrainConfig(model=mlp, data=DATA, loss=F.cross_entropy)
    config = SweepConfig(train=train, variants=variants)
    waiting = [Progress(Member(0, variants[0], Path()), config.kind_of(variants[0]))]
    assert rows.rows_of_device(config, waiting, CPU, print)[0] == count


def test_no_more_train_at_once_than_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = bow.grid(seed=range(6))
    expected = swept(tmp_path / "all", mlp, DATA, variants, engine="graph")
    assert expected.at_once == 6
    need = predict_memory(mlp(), SGD, Members(), learners=3, engine="graph", place=CPU).total_bytes
    monkeypatch.setattr("bow.devices.memory.host_memory", lambda: (need, need))
    result = swept(tmp_path / "some", mlp, DATA, variants, engine="graph")
    assert result.at_once == 3
    assert_alike(result, expected)
    with pytest.raises(SettingError, match="at_once=5 members do not fit in memory; use at_once=3"):
        swept(tmp_path / "five", mlp, DATA, variants, engine="graph", at_once=5)


def test_members_have_frozen_parameters_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(6, 100).requires_grad_(False), nn.Linear(100, 3))
    given: dict[str, Any] = {"learners": 2, "engine": "graph", "place": CPU}
    shared, own = (predict_memory(model, SGD, sync, **given) for sync in (SMA(), Members()))
    assert shared.frozen_bytes == own.buffer_bytes == 700 * 4
    assert own.frozen_bytes == shared.buffer_bytes == 0


def test_on_a_gpu_the_tuner_finds_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []

    def tuned(request: Request, *_: Any, **__: Any) -> Tuned:
        asked.append(request)
        return Tuned("graph", 2, 1, False, "calibration")

    monkeypatch.setattr(rows, "tune", tuned)
    data = (FLAT[:70], LABELS[:70])
    variants, given = bow.grid(seed=range(5)), {"engine": "graph", "optimizer": ADAMW}
    result = swept(tmp_path / "sweep", mlp, data, variants, devices=FakeDevice(), **given)
    (request,) = asked
    assert dataclasses.replace(request, replicas=None) == Request(
        "graph", "auto", False, 16, most=5, samples=5 * 9 * 16, rounds=9, rule=5, replicas=None
    )
    assert result.at_once == 2
    for number in (0, 4):
        member = result.members[number]
        path = tmp_path / str(number)
        assert_same(member, alone(path, mlp, data, member.variant, devices=FakeDevice(), **given))
    given["engine"] = "eager"
    rule = bow.Halving(asynchronous=True)
    for name, others in {"given": {"at_once": 3}, "halving": {"stop": rule}, "cpu": {"devices": "cpu"}}.items():
        settings = {"devices": FakeDevice(), **given, **others}
        assert swept(tmp_path / name, mlp, data, variants, **settings).at_once == others.get("at_once", 5)
    swept(tmp_path / "search", mlp, data, Listed(*variants), devices=FakeDevice(), **given)
    assert len(asked) == 1
    parts = [bow.Variant(name=str(n), train_on=range(n)) for n in (32, 16)]
    swept(tmp_path / "parts", mlp, data, parts, devices=FakeDevice(), **given)
    assert (asked[1].rounds, asked[1].samples) == (4, 2 * 4 * 16)


def test_on_a_gpu_as_many_train_as_the_tuner_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "tune", lambda *_, **__: Tuned("eager", 40, 1, False, "calibration"))
    variants, given = bow.grid(seed=range(40)), {"engine": "eager", "devices": FakeDevice(), "steps": 1}
    assert swept(tmp_path / "sweep", mlp, DATA, variants, **given).at_once == 40


@pytest.mark.nightly
def test_trials_on_a_device_change_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class First:
        def why_over(self, member: Member) -> str:
            return "the first epoch"

    found: list[Tuned] = []
    tune = rows.tune
    monkeypatch.setattr(rows, "tune", lambda *given, **named: found.append(tune(*given, **named)) or found[-1])
    variants, given = bow.grid(seed=range(4)), {"engine": "graph", "optimizer": ADAMW, "stop": First()}
    results = []
    for at_once in (3, "auto", "auto"):
        run = {"devices": FakeDevice(), "epochs": 100_000, "at_once": at_once, **given}
        results.append(swept(tmp_path / str(len(results)), mlp, DATA, variants, **run))
    assert [each.source for each in found] == ["calibration", "cache"]
    assert [result.at_once for result in results] == [3, found[0].learners, found[0].learners]
    for result in results[1:]:
        assert_alike(result, results[0])


def test_members_of_compiled_tasks_have_frozen_parameters_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.engines.eager.compiled", lambda function: function)  # what would be compiled, as it is
    inputs, labels = torch.randn(48, 6), torch.arange(48) % 3

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 20).requires_grad_(False), nn.Tanh(), nn.Linear(20, 3))

    plain, compiled = (
        bow.sweep(
            model,
            (inputs, labels),
            nn.functional.cross_entropy,
            variants=bow.grid(seed=range(2)),
            epochs=2,
            engine=bow.Engine("eager", compile=compile),
            run=bow.Run(tmp_path / str(compile), progress=False),
        )
        for compile in (False, True)
    )
    for one, other in zip(plain, compiled, strict=True):
        torch.testing.assert_close(one.model.state_dict(), other.model.state_dict())
