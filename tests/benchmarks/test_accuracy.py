"""`python -m benchmarks accuracy`, for real but small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import main
from bow.errors import DataError


def test_a_small_run_reaches_a_small_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    status = main("accuracy", ["data=digits", "seeds=2", "epochs=1", "target=0.2", f"out={tmp_path / 'results'}"])
    assert status == 0
    values = json.loads((tmp_path / "results" / "accuracy.json").read_text())
    assert values["target_reached"] is True
    assert [len(training["accuracies"]) for training in values["trainings"]] == [1, 1]
    assert values["trainings"][0]["accuracies"] != values["trainings"][1]["accuracies"]
    assert "seed 1: 20% in epoch" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert torch.get_num_threads() == threads


def test_a_missed_target_is_exit_status_1(tmp_path: Path) -> None:
    assert main("accuracy", ["quick=true", "target=0.999", f"out={tmp_path}"]) == 1
    assert json.loads((tmp_path / "accuracy.json").read_text())["target_reached"] is False


def test_missing_data_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        main("accuracy", [f"root={tmp_path / 'nowhere'}", f"out={tmp_path}"])
