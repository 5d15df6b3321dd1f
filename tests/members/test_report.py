"""The report of a sweep: written at its end, and again from what lies in its directory."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import bow
from bow.cli import main
from bow.members.report import SweepReport
from bow.observe import RunDirectory
from bow.observe.report import write_report
from tests.members.test_equality import DATA, LABELS, mlp, swept
from tests.observe.test_report import Page


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    variants = [*bow.grid(seed=range(2), lr=[0.01, 0.02, 0.2]), bow.Variant(seed=0, settings={"lr": 1e30})]
    return swept(tmp_path_factory.mktemp("sweep") / "run", mlp, DATA, variants, engine="eager", validation=DATA)


def test_a_sweep_ends_with_a_report_of_all_members(result: Any) -> None:
    text = result.report_path.read_text(encoding="utf-8")
    page = Page(text)
    assert {member.name for member in result.members} <= set(page.words)
    assert f"best: {result.best.name}" in page.words
    assert "finished" in page.words
    assert "diverged" in page.words
    assert "0.2 instead of 0.01" in page.words
    assert page.tags.count("figure") == 4
    assert not {"script", "img", "iframe"} & set(page.tags)
    assert not re.search(r"@import|url\((?!#)", text)
    links = [address for address in page.addresses if not address.startswith("#")]
    assert all((result.run_dir / link).is_dir() for link in links)
    assert len(links) == 7


def test_what_the_directory_tells_is_what_the_sweep_returned(result: Any) -> None:
    read = SweepReport.read(RunDirectory(result.run_dir)).sweep
    assert [member.name for member in read.ranked()] == [member.name for member in result.ranked()]
    assert str(read.compare("lr")) == str(result.compare("lr"))
    assert [member.stopped for member in read] == [member.stopped for member in result]
    assert (read.engine, read.at_once) == (result.engine, result.at_once)


def test_what_members_differ_in_is_no_setting_of_all(result: Any) -> None:
    read = SweepReport.read(RunDirectory(result.run_dir))
    assert read.settings["seed"] == "varies by member"
    assert read.start["batch_size"] == 16


def test_the_chart_of_a_setting_has_members_at_the_epoch_that_all_came_to(tmp_path: Path) -> None:
    variants = bow.grid(seed=[0, 1], lr=[0.01, 0.02, 0.2])
    stop = bow.Halving("accuracy", reduction=3)
    result = swept(tmp_path / "run", mlp, DATA, variants, engine="eager", epochs=3, stop=stop)
    chart = SweepReport.read(RunDirectory(result.run_dir)).charts[-1]
    assert chart.title == "Accuracy by lr after 1 epoch"
    assert "after the epochs of the shorter one" in result.report_path.read_text(encoding="utf-8")
    values = {member.history[0]["accuracy"] for member in result}
    assert {y for series in chart.series[:-1] for _, y in series.points} == values


def test_the_report_is_written_again_by_the_command(result: Any, capsys: pytest.CaptureFixture[str]) -> None:
    result.report_path.unlink()
    assert main(["report", str(result.run_dir)]) == 0
    assert capsys.readouterr().out == f"{result.report_path}\n"
    assert "Members, best first" in result.report_path.read_text()


def test_every_member_has_a_report_of_its_own_that_diverged_or_not(result: Any) -> None:
    for member in (result.best, result.members[-1]):
        assert "finished" in write_report(member.run_dir).read_text()
    assert result.members[-1].stopped == "diverged"


def test_a_sweep_under_way_has_a_report(result: Any, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes((result.run_dir / "config.yaml").read_bytes())
    assert main(["report", str(tmp_path)]) == 0
    page = Page((tmp_path / "report.html").read_text())
    assert "not finished" in page.words
    assert page.words.count("waiting") == 7


def test_folds_are_paired_as_the_sweep_pairs_them(tmp_path: Path) -> None:
    folds = bow.members.folds(len(LABELS), 3)
    variants = [
        bow.Variant(settings={"lr": lr}, train_on=train, validate_on=test, name=f"{lr} {number}")
        for lr in (0.01, 0.1)
        for number, (train, test) in enumerate(folds)
    ]
    result = swept(tmp_path / "run", mlp, DATA, variants, engine="eager", epochs=1, validation=None)
    read = SweepReport.read(RunDirectory(result.run_dir)).sweep
    assert str(read.compare("lr")) == str(result.compare("lr"))
    assert result.compare("lr")[0].pairs == 3


def test_schedulers_in_which_members_differ_are_their_own(tmp_path: Path) -> None:
    words = ["model=logistic_regression", "data.limit=32", "epochs=1", "engine=eager", "run.progress=false"]
    assert main(["train", "-m", *words, "scheduler.T_max=2,3", f"run={tmp_path}/run"]) == 0
    settings = SweepReport.read(RunDirectory(tmp_path / "run")).settings
    assert settings["scheduler.T_max"] == "varies by member"
    assert settings["optimizer.lr"] == "0.02"


def test_many_learning_rates_are_compared_with_the_best(tmp_path: Path) -> None:
    variants = bow.grid(seed=range(2), lr=[0.001 * 2**k for k in range(7)])
    result = swept(tmp_path / "run", mlp, DATA, variants, engine="eager", epochs=1, validation=None)
    ((_, rows),) = SweepReport.read(RunDirectory(result.run_dir)).comparisons
    assert len(rows) == 6
    assert torch.isfinite(torch.tensor(result.best.value("loss")))
