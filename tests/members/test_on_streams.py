"""Members on a device with streams, by the fake one: as alone there, and one that diverges ends alone."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import bow
from bow.errors import DataError
from bow.members.cohort import Cohort
from bow.testing import FakeDevice
from tests.members.test_equality import (
    ADAMW,
    FLAT,
    IMAGES,
    LABELS,
    SGD,
    VARIANTS,
    Normed,
    alone,
    assert_same,
    mlp,
    swept,
)

DATA: Any = (IMAGES[:70], LABELS[:70])
"""Four batches and a short one."""

trained: dict[tuple[str, int], Any] = {}
"""Members of `Normed` alone, by engine."""


def assert_alone(result: Any, engine: str, tmp_path: Path) -> None:
    for number, member in enumerate(result.members):
        if (engine, number) not in trained:
            settings = {"engine": engine, "optimizer": ADAMW, "devices": FakeDevice()}
            path = tmp_path / str(number)
            trained[engine, number] = alone(path, Normed, DATA, member.variant, **settings)
        assert_same(member, trained[engine, number])


@pytest.mark.parametrize("engine", ["eager", "graph", "streams"])
def test_members_become_what_they_become_alone(engine: str, tmp_path: Path) -> None:
    settings = {"engine": engine, "optimizer": ADAMW}
    result = swept(tmp_path / "sweep", Normed, DATA, VARIANTS, at_once=2, devices=FakeDevice(), **settings)
    assert result.engine == engine
    assert_alone(result, engine, tmp_path)


def test_batches_are_moved_to_a_gpu_where_the_engine_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Cohort.begin

    def elsewhere(self: Cohort, turns: int) -> Any:
        self.group.device = torch.device("meta")  # the only other device that is always there
        return begin(self, turns)

    monkeypatch.setattr(Cohort, "begin", elsewhere)
    with pytest.raises(DataError, match="on the meta device"):
        swept(tmp_path / "sweep", mlp, (FLAT, LABELS), [bow.Variant()], engine="eager")


def test_sgd_is_that_of_torch_where_a_kernel_steps_one_alone(tmp_path: Path) -> None:
    result = swept(tmp_path / "sweep", Normed, DATA, VARIANTS, engine="graph", at_once=2, devices=FakeDevice())
    for number, member in enumerate(result.members):
        path = tmp_path / str(number)
        other = alone(path, Normed, DATA, member.variant, "graph", devices=FakeDevice(), optimizer=SGD)
        assert member.model is not None
        for name, value in other.model.state_dict().items():
            torch.testing.assert_close(member.model.state_dict()[name], value, msg=name)


def test_one_that_diverges_ends_alone(tmp_path: Path) -> None:
    variants = bow.grid(seed=[0, 1], lr=[0.05, 1e30])
    settings = {"engine": "graph", "devices": FakeDevice(), "optimizer": ADAMW}
    result = swept(tmp_path / "sweep", mlp, (FLAT, LABELS), variants, **settings)
    assert [member.stopped for member in result.members] == [None, "diverged", None, "diverged"]
    healthy = swept(tmp_path / "healthy", mlp, (FLAT, LABELS), variants[::2], **settings)
    for member, other in zip(result.members[::2], healthy.members, strict=True):
        assert_same(member, other)


@pytest.mark.parametrize("device", [FakeDevice, lambda: "cpu"], ids=["fake", "cpu"])
def test_one_whose_last_step_leaves_the_finite_numbers_has_diverged(device: Any, tmp_path: Path) -> None:
    variants = bow.grid(lr=[1e-6, 3e38])
    settings: dict[str, Any] = {"engine": "graph", "devices": device(), "steps": 1, "validation": None}
    result = swept(tmp_path / "sweep", mlp, (1e3 * FLAT, LABELS), variants, **settings)
    assert [member.stopped for member in result.members] == [None, "diverged"]


@pytest.mark.parametrize("at_once", [1, "auto"])
def test_several_devices_take_from_one_queue(at_once: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices, opened = [FakeDevice(), FakeDevice()], list[tuple[Any, int]]()
    before = Cohort.__init__

    def noted(self: Any, *given: Any) -> None:
        before(self, *given)
        opened.append((self.where, len(self.rows)))

    monkeypatch.setattr(Cohort, "__init__", noted)
    monkeypatch.setattr(sys.modules["bow.members.sweep"], "devices_of", lambda config: devices)
    settings = {"engine": "graph", "optimizer": ADAMW}
    result = swept(tmp_path / "sweep", Normed, DATA, VARIANTS, at_once=at_once, **settings)
    assert opened == [(devices[0], 1 if at_once == 1 else 2), (devices[1], 1)]
    assert all(device.replays for device in devices)
    assert_alone(result, "graph", tmp_path)


def test_without_gpus_devices_are_shares_of_cores_that_members_share_anyway(tmp_path: Path) -> None:
    assert_same(*(swept(tmp_path / str(n), mlp, (FLAT, LABELS), VARIANTS[:1], devices=n).members[0] for n in (1, 2)))
