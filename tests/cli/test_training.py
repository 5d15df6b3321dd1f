import json
from pathlib import Path

import pytest
import yaml

from bow.cli import main

SMALL = ["data.limit=64", "epochs=1", "learners=2"]


@pytest.fixture(autouse=True)
def _in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_dirs() -> list[Path]:
    return sorted(Path("runs").iterdir())


def test_default_run_ends_with_accuracy_and_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 0
    model, report = capsys.readouterr().out.splitlines()[-2:]
    accuracy = float(model.removeprefix("central model: accuracy ").split()[0])
    assert accuracy >= 97
    path = Path(report.removeprefix("report: "))
    assert path.read_text().startswith("<!")
    assert {"config.yaml", "metrics.jsonl", "model.safetensors"} <= {file.name for file in path.parent.iterdir()}


def test_sweep_leaves_a_run_directory_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", "data.limit=64", "epochs=1", "learners=1,2"]) == 0
    learners = [json.loads((path / "metrics.jsonl").read_text().splitlines()[0])["learners"] for path in run_dirs()]
    assert sorted(learners) == [1, 2]
    shown = capsys.readouterr().out
    assert "[1/2] data.limit=64 epochs=1 learners=1" in shown
    assert "[2/2] data.limit=64 epochs=1 learners=2" in shown
    assert shown.count("report: ") == 2


def test_same_seed_gives_the_same_model() -> None:
    for name in ("first", "second"):
        assert main(["train", *SMALL, f"run_dir={name}", "seed=3"]) == 0
    assert Path("first/model.safetensors").read_bytes() == Path("second/model.safetensors").read_bytes()


def test_sweep_checks_every_run_before_the_first() -> None:
    assert main(["train", "-m", *SMALL, "model=mlp,vgg"]) == 2
    assert not Path("runs").exists()


def test_run_dir_is_used_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "run_dir=here"]) == 0
    assert Path("here/report.html").exists()
    assert capsys.readouterr().out.endswith("report: here/report.html\n")


def test_run_without_validation_ends_with_the_training_loss(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "validation=null"]) == 0
    assert "central model: train loss " in capsys.readouterr().out


def test_progress_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "progress=false"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_show_prints_the_settings_and_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--show", "learners=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["learners"] == 3
    assert not Path("runs").exists()


def test_report_can_be_written_again(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", *SMALL, "run_dir=here"])
    Path("here/report.html").unlink()
    assert main(["report", "here"]) == 0
    assert Path("here/report.html").exists()
    assert capsys.readouterr().out.endswith("here/report.html\n")


def test_learners_are_found_for_goodput(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "data.limit=64", "epochs=1", "learners=auto", "tuner.objective=goodput"]) == 0
    (path,) = run_dirs()
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    (found,) = [record for record in records if record["kind"] == "calibration"]
    assert found["source"] == "rule"
    assert "rounds are too few to measure anything" in found["summary"]
    assert f"engine and learners: {found['summary']}" in capsys.readouterr().out
    assert "objective" in (path / "config.yaml").read_text()
