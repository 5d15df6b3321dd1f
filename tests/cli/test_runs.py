"""`bow runs` and `bow compare`: from the records that runs have left."""

import fcntl
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bow.cli import main
from bow.observe import RunDirectory
from bow.observe.report import Report, RunComparison
from tests.observe.conftest import training


def make(path: Path, lr: float = 0.1, data: str = "bow.data.digits", **options: Any) -> RunDirectory:
    directory = RunDirectory.create(path, path.name)
    directory.write_config({"data": {"_target_": data}, "optimizer": {"lr": lr}})
    write(directory, training(**options))
    return directory


def write(directory: RunDirectory, records: Iterable[dict[str, Any]]) -> None:
    directory.metrics_path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


@pytest.fixture
def shown_or_refused(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], None]:
    """Runs commands which do what they shall, or say in one sentence why not."""

    def run(words: list[str]) -> None:
        status = main(words)
        assert status in (0, 2)
        assert capsys.readouterr().err.count("\n") == (status == 2), words

    return run


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
    assert len(re.findall(r"^\d\d-\d\d \d\d:\d\d", shown, re.MULTILINE)) == 6  # below names that do not say it
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
        write(directory, records)
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.count("loss \N{EN DASH}") == 2


def test_a_folder_without_runs_or_none_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"there are no runs in {tmp_path}\n"
    refused(["runs"], "runs is not a directory")


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


def test_runs_of_one_folder_are_called_by_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("runs/a", "runs/b", "c"):
        make(tmp_path / name)
    for others, heads in (("runs/a runs/b", "a b"), ("runs/a c", "runs/a c")):
        assert main(["compare", *others.split()]) == 0
        assert capsys.readouterr().out.splitlines()[1].split() == heads.split()


def test_many_runs_have_a_curve_each(tmp_path: Path) -> None:
    names = [f"run{number}" for number in range(11)]
    reports = [Report.read(make(tmp_path / name)) for name in names]
    for chart in RunComparison(names, reports).charts:
        assert [series.name.removesuffix(" (validation)") for series in chart.series] == names


def test_sweeps_and_single_runs_are_not_compared(tmp_path: Path, refused: Callable[..., str]) -> None:
    make(tmp_path / "a").write_config({"variants": []})
    refused(["compare", "a", "a"], "a is a sweep, whose report compares its members")
    refused(["compare", "a"], "takes two run directories or more, got 1")
    assert yaml.safe_load(Path("a/config.yaml").read_text()) == {"variants": []}


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o300], ids=["closed", "not entered", "not listed"])
@pytest.mark.parametrize(
    "words",
    [
        ["runs"],
        ["compare", "a", "b"],
        ["report", "a"],
        ["predict", "a", "validation"],
        ["train", "run=a"],
        ["train", "run=a", "run.resume=auto"],
        ["train", "run.resume=a"],
        ["train", "--config", "a/config.yaml"],
        ["train", "data=cifar10", "data.root=."],
        ["train", "data=mnist", "data.root=."],
    ],
    ids=" ".join,
)
def test_a_folder_that_cannot_be_read_is_one_sentence(
    words: list[str], mode: int, unprivileged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"{unprivileged / word}" if word in ("a", "b") else word for word in words]
    given = [word.replace("=a", f"={unprivileged}/a").replace("a/conf", f"{unprivileged}/a/conf") for word in given]
    given = [word.replace("root=.", f"root={unprivileged}") for word in given]
    given = [*given, str(unprivileged)] if words == ["runs"] else given
    for name in ("a", "b"):
        make(unprivileged / name)
    for path in (unprivileged / "a/metrics.jsonl", unprivileged / "b/metrics.jsonl", unprivileged):
        path.chmod(mode)
    listed = mode & 0o400 and words[0] == "runs"
    assert main(given) == (0 if listed else 2)
    out, err = capsys.readouterr()
    (line,) = [each for each in (out if listed else err).splitlines() if str(unprivileged) in each][-1:]
    assert line.startswith("damaged: " if listed else "bow: ")
    assert not err or err.count("\n") == 1


@pytest.mark.parametrize("what", ["metrics.jsonl", "config.yaml", "checkpoints"])
@pytest.mark.parametrize("mode", [0o000, 0o300])
def test_a_file_of_a_run_that_cannot_be_read_is_one_sentence(
    what: str, mode: int, unprivileged: Path, shown_or_refused: Callable[[list[str]], None]
) -> None:
    directory = make(unprivileged / "a")
    directory.checkpoints.mkdir()
    (directory.path / what).chmod(mode)
    train = ["train", "data.limit=64", "epochs=1", "learners=1", "engine=eager", "run=a"]
    for words in (["report", "a"], ["compare", "a", "a"], [*train, "run.resume=auto"], train):
        shown_or_refused([word.replace("a", str(unprivileged / "a")) if word.endswith("a") else word for word in words])


@pytest.mark.parametrize(
    "words", [["runs", "."], ["report", "a"], ["compare", "a", "a"], ["predict", "a", "validation"]]
)
@pytest.mark.parametrize("what", ["metrics.jsonl", "config.yaml", "checkpoints", "model.safetensors"])
def test_a_folder_in_the_place_of_a_file_and_the_other_way_round(
    what: str, words: list[str], tmp_path: Path, shown_or_refused: Callable[[list[str]], None]
) -> None:
    directory = make(tmp_path / "a")
    path = directory.path / what
    if path.exists():
        path.unlink()
    path.touch() if what == "checkpoints" else path.mkdir()
    shown_or_refused(words)


DAMAGED = {
    "metrics of another kind": ("metrics.jsonl", '{"kind": "start", "time_s": 0, "metrics": ["accuracy"]}\n'),
    "a start of lists": (
        "metrics.jsonl",
        '{"kind": "start", "time_s": 0, "learners": [], "versions": 3, "machine": []}\n',
    ),
    "an epoch without an epoch": ("metrics.jsonl", '{"kind": "start", "time_s": 0}\n{"kind": "epoch", "time_s": 1}\n'),
    "an end alone": ("metrics.jsonl", '{"kind": "end", "time_s": 1}\n'),
    "rows of a table": ("metrics.jsonl", '{"kind": "calibration", "time_s": 0, "rows": [{}]}\n'),
    "settings that are a list": ("config.yaml", "[1, 2]"),
    "settings of lists": ("config.yaml", "optimizer: [1]\ndata: 3\nvalidation: []\n"),
    "variants of numbers": ("config.yaml", "variants: [1, 2]"),
    "variants without a folder": ("config.yaml", "variants: [{name: 3, folder: [1]}]"),
    "variants of odd names": ("config.yaml", "variants: [{name: null, seed: x}, {name: {a: 1}, lr: .nan}]"),
}


@pytest.mark.parametrize("words", [["runs", "."], ["report", "a"], ["compare", "a", "a"]], ids=lambda words: words[0])
@pytest.mark.parametrize("name", DAMAGED)
def test_whatever_a_run_holds_is_shown_or_one_sentence(
    name: str, words: list[str], tmp_path: Path, shown_or_refused: Callable[[list[str]], None]
) -> None:
    file, text = DAMAGED[name]
    (make(tmp_path / "a").path / file).write_text(text)
    shown_or_refused(words)


def test_a_run_that_is_deleted_meanwhile_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "runs/first")
    gone = make(tmp_path / "runs/gone")
    holds = RunDirectory.holds_run.fget  # type: ignore[attr-defined]

    def deleted(directory: RunDirectory) -> bool:
        found = holds(directory)
        if directory.path.name == "gone":
            for path in gone.path.iterdir():
                path.unlink()
            gone.path.rmdir()
        return bool(found)

    gone.config_path.unlink()
    monkeypatch.setattr(RunDirectory, "holds_run", property(deleted))
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "first" in shown
    assert "gone" not in shown


def test_a_sweep_that_has_just_begun_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make(tmp_path / "runs/sweep")
    directory.write_config({"variants": [{"name": "seed=0", "seed": 0}, {"name": "seed=1", "seed": 1}]})
    directory.metrics_path.write_text('{"kind": "start", "time_s": 0.0, "metrics": {"accuracy": true}}\n')
    assert main(["runs"]) == 0
    assert "2 members" in capsys.readouterr().out
    assert main(["report", "runs/sweep"]) == 0


def test_learners_are_told_by_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make(tmp_path / "runs/two")
    start, *others = map(json.loads, directory.metrics_path.read_text().splitlines())
    write(directory, [{**start, "by_device": [3, 3]}, *others])
    assert main(["runs"]) == 0
    assert "3 x 2 devices, eager" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:the training to be resumed")
def test_a_run_resumed_with_fewer_epochs_says_what_was_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "data.limit=64", "learners=1", "engine=eager", f"run={tmp_path / 'runs/a'}"]
    words += ["run.checkpoint_every=5", "-q"]
    assert main([*words, "optimizer.lr=.01", "epochs=4"]) == 0
    config = yaml.safe_load((tmp_path / "runs/a/config.yaml").read_text())
    *_, last = sorted((tmp_path / "runs/a/checkpoints").iterdir())
    last.unlink()
    assert main([*words, "epochs=3", "optimizer.lr=.02", "run.resume=auto"]) == 0
    resumed = yaml.safe_load((tmp_path / "runs/a/config.yaml").read_text())
    assert resumed["epochs"] == 3
    assert (resumed["optimizer"], resumed["scheduler"]) == (config["optimizer"], config["scheduler"])
    capsys.readouterr()
    assert main(["runs"]) == 0
    assert "finished, 3/3, " in capsys.readouterr().out
