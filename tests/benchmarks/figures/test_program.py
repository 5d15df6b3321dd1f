"""`python -m benchmarks figures`, for real but small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import main
from benchmarks.figures import devices
from bow.errors import DataError
from tests.benchmarks.figures.test_throughput import REFUSAL, refuse_two


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_figure_of_throughput_leaves_numbers_picture_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures"
    assert main("figures", ["quick=true", "figure=5.7", f"out={out}"]) == 0
    assert names(out) == ["figure_5.7.json", "figure_5.7.png", "figures.md"]
    values = json.loads((out / "figure_5.7.json").read_text())
    assert values["benchmark"] == "figures 5.7"
    assert values["settings"]["figure"] == ["5.7"]
    assert [(row["system"], row["learners"], row["sync"]) for row in values["rows"]] == [
        ("pytorch", None, None),
        ("bow", 1, "independent"),
        ("bow", 2, "independent"),
    ]
    assert all(min(row["samples_per_s"]) > 0 for row in values["rows"])
    assert "throughput by number of learners" in capsys.readouterr().out


def test_figures_of_convergence_share_their_trainings_and_a_page(tmp_path: Path) -> None:
    assert main("figures", ["quick=true", "figure=5.4,5.5", f"out={tmp_path}"]) == 0
    assert main("figures", ["quick=true", "figure=5.2", f"out={tmp_path}"]) == 0
    assert [name for name in names(tmp_path) if name.endswith(".png")] == [f"figure_5.{n}.png" for n in (2, 4, 5)]
    values = json.loads((tmp_path / "figure_5.5.json").read_text())
    small, best = values["small_batch"], values["best_batch_size"]
    trained = {(row["system"], row["learners"], row["batch_size"]) for row in values["rows"]}
    assert trained == {("pytorch", None, small), ("pytorch", None, best), ("bow", 1, small), ("bow", 2, small)} | {
        ("bow", 1, best)
    }
    assert max(values["rows"][0]["accuracies"]) > 0.5
    page = (tmp_path / "figures.md").read_text()
    assert page.count("Not measured yet") == 14 - 3


def test_figures_of_devices_run_on_one_and_quote_the_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "train_on", refuse_two)
    assert main("figures", ["quick=true", "figure=5.9", f"out={tmp_path}"]) == 0
    rows = json.loads((tmp_path / "figure_5.9.json").read_text())["rows"]
    assert {row["devices"] for row in rows if row["samples_per_s"]} == {1}
    assert {row["refused"] for row in rows if row["devices"] == 2} == {REFUSAL}
    assert f"\u201c{REFUSAL}\u201d" in (tmp_path / "figures.md").read_text()


def test_a_figure_whose_data_are_missing_leaves_the_others_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("figures", ["size=full", "figure=5.3,table5.1", f"out={tmp_path}"]) == 1
    assert "5.3 could not be measured: MNIST needs a directory" in " ".join(capsys.readouterr().out.split())
    assert names(tmp_path) == ["figures.md", "table_5.1.json"]
    rows = json.loads((tmp_path / "table_5.1.json").read_text())["rows"]
    assert [(row["model"], row["data"], row["data_mb"]) for row in rows] == [
        ("Logistic regression", "MNIST", 179.44),
        ("LeNet", "MNIST", 179.44),
        ("ResNet-32", "CIFAR-10", 585.94),
    ]
    assert rows[0]["model_mb"] == 0.0314
    assert rows[0]["operators"] < rows[1]["operators"] < rows[2]["operators"]


@pytest.mark.parametrize(("figure", "folder"), [("5.1", "cifar10"), ("5.5", "mnist")])
def test_missing_data_are_one_sentence_that_names_the_folder(figure: str, folder: str, tmp_path: Path) -> None:
    words = ["size=full", f"figure={figure}", f"out={tmp_path / 'out'}", f"root={tmp_path}"]
    with pytest.raises(DataError, match=f"{tmp_path}/.* is missing"):
        main("figures", words)
    (tmp_path / folder).mkdir()
    with pytest.raises(DataError, match=f"{tmp_path / folder}/.* is missing"):
        main("figures", words)
