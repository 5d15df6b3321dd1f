"""`python -m benchmarks tiles`, in small, and what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import main, tiles_report
from benchmarks.tiles import OFF, Settings
from benchmarks.tiles_runs import Training
from bow.errors import SettingError


def test_the_strategy_found_trains_what_one_device_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("tiles", ["quick=true", f"out={tmp_path}"]) == 0
    values = json.loads((tmp_path / "tiles.json").read_text())
    assert set(values["trainings"]) == set(OFF)
    for precision, of_all in values["trainings"].items():
        assert set(of_all) == {"found", "data parallel", "one device"}
        assert all(len(row["losses"]) == values["settings"]["steps"] for row in of_all.values())
        assert all(row["loss_off"] < OFF[precision] for row in of_all.values())
    page = (tmp_path / "tiles.md").read_text()
    assert tiles_report.told(values) in page
    assert tiles_report.told(values) in capsys.readouterr().out.replace("\n", " ").replace("  ", " ")


def row(step_ms: float, loss_off: float) -> dict[str, Any]:
    return {"step_ms": {"median": step_ms}, "loss_off": loss_off}


@pytest.mark.parametrize(("found_ms", "off", "misses"), [(20.0, 1e-12, False), (20.0, 1e-6, True), (30.0, 1e-12, True)])
def test_other_losses_or_a_slower_strategy_miss_the_aim(found_ms: float, off: float, misses: bool) -> None:
    rows = {"found": row(found_ms, off), "data parallel": row(20.0, 0.0)}
    assert tiles_report.misses({"trainings": {"float32": rows, "float64": rows}}, OFF) is misses


def test_trainings_are_compared_step_by_step_and_weight_by_weight() -> None:
    one = Training([2.0, 1.0], [1.0], torch.tensor([4.0, 1.0]))
    other = Training([2.0, 1.25], [1.0], torch.tensor([4.0, 2.0]))
    assert one.loss_off(one) == one.weight_off(one) == 0.0
    assert one.loss_off(other) == 0.2
    assert one.weight_off(other) == 0.25


def test_a_training_of_one_step_is_refused() -> None:
    with pytest.raises(SettingError, match="steps must be at least 2"):
        Settings(steps=1)
