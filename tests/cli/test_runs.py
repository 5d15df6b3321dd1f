"""`bow runs` and `bow compare`: from the records that runs have left."""

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from observe.conftest import training

from bow.cli import main
from bow.observe import RunDirectory
from bow.observe.comparison import RunComparison
from bow.observe.report import Report


def make(path: Path, lr: float = 0.1, data: str = "bow.data.digits", **options: Any) -> RunDirectory:
    directory = RunDirectory.create(path, path.name)
    directory.write_config({"data": {"_target_": data}, "optimizer": {"lr": lr}})
    directory.metrics_path.write_text("".join(f"{json.dumps(record)}\n" for record in training(**options)))
    return directory


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_runs_are_rows_and_damaged_ones_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "runs/2026-01-31_120000_first")
    make(tmp_path / "runs/cut", finished=False)
    make(tmp_path / "runs/long", epochs=1200)
    make(tmp_path / "runs/wrong").metrics_path.write_text('{"kind": "start", "time_s": "x"}\n')
    make(tmp_path / "runs/empty").metrics_path.write_text("")
    make(tmp_path / "runs/sweep").write_config({"variants": []})
    (tmp_path / "runs/no run").mkdir()
    with make(tmp_path / "runs/busy", finished=False).path.joinpath(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line for line in shown.splitlines()}
    first = rows["2026-01-31_120000_first"]
    assert " 01-31 12:00 " in first
    assert "LeNet, digits" in first
    assert "3, eager" in first
    assert "accuracy 87.50 %" in first
    assert first.rstrip().endswith("finished, 3/3, 3.1 s")
    assert "not finished, 3/3" in rows["cut"]
    assert "under way, 3/3" in rows["busy"]
    assert "finished, 1200/1200, " in rows["long"]
    assert rows["wrong"].rstrip().endswith("damaged")
    assert rows["empty"].rstrip().endswith("damaged")
    assert rows["sweep"].rstrip().endswith("damaged")
    assert "damaged: runs/wrong/metrics.jsonl, line 1: time_s cannot be 'x'; correct or remove the line" in shown
    assert "no run " not in shown


def test_a_loss_that_is_lost_is_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lost in (1, 3):
        directory = make(tmp_path / f"runs/lost{lost}", validation=False)
        records = [json.loads(line) for line in directory.metrics_path.read_text().splitlines()]
        for record in [record for record in records if record["kind"] == "epoch"][-lost:]:
            record["train_loss"] = None
        directory.metrics_path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.count("loss \N{EN DASH}") == 2


def test_a_folder_without_runs_or_none_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"there are no runs in {tmp_path}\n"
    assert main(["runs"]) == 2
    assert "runs is not a directory" in capsys.readouterr().err


def test_two_runs_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b", lr=0.2, validation=False)
    assert main(["compare", "a", "b", "out=both.html"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["optimizer.lr", "0.1", "0.2"] in rows
    assert ["epochs", "3/3", "3/3"] in rows
    assert ["curves:", "both.html"] in rows
    assert not [row for row in rows if row[:1] == ["data._target_"]]
    page = Path("both.html").read_text()
    assert "Loss over epochs" in page
    assert page.count("</i>a</span>") == page.count("</i>b</span>") > 0
    assert page.count("</i>a (validation)</span>") == page.count("</i>b (training)</span>") == 2


def test_many_runs_have_a_curve_each(tmp_path: Path) -> None:
    names = [f"run{number}" for number in range(11)]
    reports = [Report.read(make(tmp_path / name)) for name in names]
    for chart in RunComparison(names, reports).charts:
        assert [series.name.removesuffix(" (validation)") for series in chart.series] == names


def test_sweeps_and_single_runs_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "a").write_config({"variants": []})
    assert main(["compare", "a", "a"]) == 2
    assert "a is a sweep, whose report compares its members" in capsys.readouterr().err
    assert main(["compare", "a"]) == 2
    assert "takes two run directories or more, got 1" in capsys.readouterr().err
    assert yaml.safe_load(Path("a/config.yaml").read_text()) == {"variants": []}
