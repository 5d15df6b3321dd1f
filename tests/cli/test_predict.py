"""`bow predict` says what the model of a run says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_model

import bow
from bow.cli import main
from bow.data import digits
from bow.models import LeNet


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predict") / "run"
    assert main(["train", "data.limit=64", "epochs=3", "learners=1", "engine=eager", f"run={path}"]) == 0
    return path


def expected(path: Path, inputs: torch.Tensor) -> np.ndarray:
    model = LeNet(classes=10, channels=1, size=8)
    load_model(model, path)
    with torch.no_grad():
        return model.eval()(inputs).numpy()


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
    assert ", accuracy " in capsys.readouterr().out
    best = run_dir / "best.safetensors"
    path = best if best.exists() else run_dir / "model.safetensors"
    held_out = digits().validation[0]
    np.testing.assert_allclose(np.load(run_dir / "predictions.npy"), expected(path, held_out), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "takes a run directory, data"),
        (["RUN", "validation", "model=first"], "model=last or best"),
        (["RUN", "missing.npy"], "missing.npy cannot be read"),
        (["RUN", "WRONG"], r"the model fails on inputs of shape \(3, 2\)"),
        (["nowhere", "validation"], "nowhere/config.yaml cannot be read"),
        (["PYTHON", "validation"], "is not of a run that bow train made"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(
    run_dir: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "wrong.npy", np.ones((3, 2)))
    if "PYTHON" in words:
        data = torch.ones(16, 2), torch.zeros(16)
        run = bow.Run(tmp_path / "python", progress=False)
        bow.train(torch.nn.Linear(2, 1), data, lambda out, y: out.mean(), learners=1, engine="eager", run=run)
    named = {"RUN": str(run_dir), "WRONG": str(tmp_path / "wrong.npy"), "PYTHON": str(tmp_path / "python")}
    capsys.readouterr()
    assert main(["predict", *(named.get(word, word) for word in words)]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert message.replace("\\", "") in shown
