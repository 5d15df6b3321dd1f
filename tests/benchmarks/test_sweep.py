"""`python -m benchmarks sweep`, for real but small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import main
from benchmarks.sweep import LEARNING_RATES, Settings
from benchmarks.trial import Point, train


def test_one_learner_is_trained_once_for_all_mu() -> None:
    points = list(Settings().points())
    assert len(points) == len(set(points))
    rates = sum(map(len, LEARNING_RATES.values()))
    assert len(points) == rates * 3 * (1 + 3 * 3)
    assert {point.mu for point in points if point.learners == 1} == {None}
    assert {point.mu for point in points if point.learners > 1} == {0.0, 0.5, 0.9}


def test_a_training_is_reproducible_and_depends_on_its_seed() -> None:
    point = Point("mlp", 2, 0.5, 0.05, seed=0)
    first = train(point, epochs=2)
    torch.rand(7)
    assert train(point, epochs=2).accuracies == first.accuracies
    assert train(Point("mlp", 2, 0.5, 0.05, seed=1), epochs=2).accuracies != first.accuracies
    assert len(first.accuracies) == 2
    assert first.accuracy > 0.8


def test_a_learning_rate_far_too_large_is_seen_to_diverge() -> None:
    trial = train(Point("mlp", 2, 0.9, 1e30, seed=0), epochs=2)
    assert trial.diverged
    assert trial.accuracy == 0.0


def test_a_small_run_in_processes_of_their_own_writes_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(LEARNING_RATES, "mlp", (0.05,))
    out = tmp_path / "results"
    status = main("sweep", ["models=mlp", "learners=1,2", "mus=0,0.5", "seeds=1", "epochs=1", f"out={out}"])
    assert status == 0
    assert sorted(path.name for path in out.iterdir()) == ["sweep.json", "sweep.md", "sweep.png"]
    values = json.loads((out / "sweep.json").read_text())
    assert [(t["learners"], t["mu"]) for t in values["trials"]] == [(1, None), (2, 0.0), (2, 0.5)]
    assert values["verdict"]["mu"] in (0.0, 0.5)
    assert values["verdict"]["outcome"] in (out / "sweep.md").read_text()
    assert "wins" in capsys.readouterr().out
