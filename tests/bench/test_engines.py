"""`bow bench engines`, for real but small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bow.bench import engines, main
from bow.bench.contestants import MODELS, BowTraining, PlainTraining, make_data

SMALL = ["models=logistic_regression", "batches=4", "learners=1,2", "repeats=2", "stint_s=0.005", "samples=64"]


def test_a_small_run_measures_everybody_and_writes_both_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    status = main("engines", [*SMALL, "rivals=eager", "threads=1", f"out={tmp_path}"])
    assert status == 0
    values = json.loads((tmp_path / "engines.json").read_text())
    (group,) = values["groups"]
    assert [(c["implementation"], c["learners"]) for c in group["contestants"]] == [
        ("pytorch", None),
        ("eager", 1),
        ("eager", 2),
    ]
    assert all(c["samples_per_s"]["median"] > 0 and c["samples_per_s"]["n"] == 2 for c in group["contestants"])
    assert group["contestants"][0]["ratio"]["median"] == 1.0
    assert values["environment"]["torch"] == torch.__version__
    assert "logistic regression" in (tmp_path / "engines.md").read_text()
    assert "logistic regression" in capsys.readouterr().out
    assert torch.get_num_threads() == threads


def test_the_full_line_up_is_what_the_benchmark_promises() -> None:
    lanes = engines.line_up(engines.Settings())
    assert len(lanes) == len(set(lanes)) == 2 * (1 + 1 + 4 + 4)
    assert {lane.learners for lane in lanes if lane.implementation == "fused"} == {1, 2, 4, 8}
    assert len(engines.Settings().models) * len(engines.Settings().batches) == 9


def test_who_cannot_run_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(model: object, **_: object) -> object:
        raise RuntimeError("no compiler found\nand a long story")

    monkeypatch.setattr(torch, "compile", no_compiler)
    main("engines", [*SMALL, "rivals=compiled", "threads=1", f"out={tmp_path}"])
    (group,) = json.loads((tmp_path / "engines.json").read_text())["groups"]
    assert group["notes"] == [
        "logistic_regression, batch 4, compiled on 1 thread: left out, RuntimeError: no compiler found"
    ]
    assert [c["implementation"] for c in group["contestants"]] == ["pytorch"]


def test_quick_is_a_part_of_the_whole() -> None:
    quick = engines.Settings(quick=True).reduced()
    assert (quick.models, quick.batches) == (("logistic_regression",), (4,))
    assert engines.Settings().reduced() == engines.Settings()


@pytest.mark.parametrize("model", list(MODELS))
def test_plain_pytorch_and_bow_train_the_same(model: str) -> None:
    """One learner follows plain PyTorch, so both contestants do the same work."""
    data = make_data(8)
    plain = PlainTraining(MODELS[model], data, batch_size=8, compile=False)
    bow = BowTraining(MODELS[model], data, 8, 1, "eager")
    for _ in range(3):  # the whole data in every batch: their orders differ, their batches do not
        assert plain() == bow() == 8
    trained = dict(bow._replicas.central.named_parameters())
    for name, expected in plain._model.named_parameters():
        torch.testing.assert_close(trained[name], expected, rtol=1e-4, atol=1e-6)


def test_plain_pytorch_sees_every_sample_once_an_epoch() -> None:
    training = PlainTraining(MODELS["logistic_regression"], make_data(12), batch_size=4, compile=False)
    indices = torch.cat([training._next_indices() for _ in range(3)])
    assert sorted(indices.tolist()) == list(range(12))
