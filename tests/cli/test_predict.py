"""`bow predict` says what the model of a run says."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_model

import bow
from bow.cli import main, prediction
from bow.data import digits
from bow.models import LeNet
from bow.observe import RunDirectory
from bow.observe.text import metric_text


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predict") / "run"
    assert main(["train", "data.limit=64", "epochs=3", "learners=1", "engine=eager", f"run={path}"]) == 0
    return path


def expected(path: Path, inputs: torch.Tensor) -> np.ndarray:
    model = LeNet(classes=10, channels=1, size=8)
    load_model(model, path)
    with torch.no_grad():
        return model.eval()(inputs).float().numpy()


def test_outputs_of_a_file_are_those_of_the_model(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = digits().validation[0][:9]
    np.save(tmp_path / "inputs.npy", inputs.double().numpy())
    assert main(["predict", str(run_dir), str(tmp_path / "inputs.npy"), f"out={tmp_path / 'out.npy'}"]) == 0
    assert capsys.readouterr().out.startswith("outputs [9, 10]: ")
    np.testing.assert_allclose(
        np.load(tmp_path / "out.npy"), expected(run_dir / "model.safetensors", inputs), rtol=1e-5
    )


def test_what_was_held_out_is_measured_too(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run_dir), "validation", "model=best"]) == 0
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    loss = {record["round"]: record["loss"] for record in records if record["kind"] == "epoch"}
    shown = capsys.readouterr().out
    assert ", accuracy " in shown
    assert any(f", loss {metric_text('loss', value)}, " in shown for value in loss.values())
    best = run_dir / "best.safetensors"
    path = best if best.exists() else run_dir / "model.safetensors"
    held_out = digits().validation[0]
    np.testing.assert_allclose(np.load(run_dir / "predictions.npy"), expected(path, held_out), rtol=1e-4, atol=1e-5)


def test_what_was_held_out_is_predicted_in_the_precision_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "metric_text", lambda name, value: repr(value))
    path = tmp_path / "run"
    words = ["data.limit=64", "learners=1", "engine=eager", "engine.precision=bfloat16", "validation.batch_size=50"]
    assert main(["train", *words, f"run={path}"]) == 0
    last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    capsys.readouterr()
    assert main(["predict", str(path), "validation"]) == 0
    assert f", loss {last['loss']!r}, " in capsys.readouterr().out
    with torch.autocast("cpu", torch.bfloat16):
        outputs = expected(path / "model.safetensors", digits().validation[0])
    np.testing.assert_array_equal(np.load(path / "predictions.npy")[:256], outputs[:256])


def test_the_best_model_is_no_other(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A member of a sweep keeps the last model alone, and an earlier version said nothing of the best."""
    copied = RunDirectory(Path(shutil.copytree(run_dir, tmp_path / "run")))
    copied.best_path.unlink(missing_ok=True)
    *before, end = map(json.loads, copied.metrics_path.read_text().splitlines())
    assert 0 < end["best_round"] <= end["round"]
    for best, status in ((end["round"], 0), (1, 2), (None, 2)):
        lines = [*before, {**end, "best_round": best}]
        copied.metrics_path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        assert main(["predict", str(copied.path), "validation", "model=best"]) == status
    assert "run has no best model (best.safetensors)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "takes a run directory, data"),
        (["RUN", "validation", "model=first"], "model=last or best"),
        (["RUN", "missing.npy"], "missing.npy cannot be read"),
        (["RUN", "ZIP"], "wrong.npz cannot be read"),
        (["RUN", "WRONG"], "the model fails on inputs of shape (3, 2)"),
        (["nowhere", "validation"], "nowhere is not the directory of a run"),
        (["PYTHON", "validation"], "is not from a run of the bow train command"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(
    run_dir: Path, tmp_path: Path, words: list[str], message: str, refused: Callable[..., str]
) -> None:
    np.save(tmp_path / "wrong.npy", np.ones((3, 2)))
    np.savez(tmp_path / "wrong.npz", np.ones((3, 2)))
    if "PYTHON" in words:
        data = torch.ones(16, 2), torch.zeros(16)
        run = bow.Run(tmp_path / "python", progress=False)
        bow.train(torch.nn.Linear(2, 1), data, lambda out, y: out.mean(), learners=1, engine="eager", run=run)
    named = {
        "RUN": str(run_dir),
        "WRONG": str(tmp_path / "wrong.npy"),
        "ZIP": str(tmp_path / "wrong.npz"),
        "PYTHON": str(tmp_path / "python"),
    }
    refused(["predict", *(named.get(word, word) for word in words)], message)


def test_a_directory_without_a_run_is_named(tmp_path: Path, refused: Callable[..., str]) -> None:
    message = f"{tmp_path / 'nope'} is not the directory of a run (it has no config.yaml)"
    assert "--config" not in refused(["predict", str(tmp_path / "nope"), "validation"], message)
