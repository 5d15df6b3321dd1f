import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_model

import bow
from bow.cli import main, training
from bow.observe import RunDirectory
from bow.observe.records import metrics, read_records, scalars
from bow.training.checks import MOVED
from bow.training.config import TrainConfig
from bow.training.train import run_training
from tests.cli.test_sweep import assert_same_models

SMALL = ["data.limit=64", "epochs=1", "learners=2"]


def run_dirs() -> list[Path]:
    return sorted(Path("runs").iterdir())


@pytest.mark.parametrize(("words", "least"), [pytest.param([], 97, marks=pytest.mark.nightly), (["epochs=3"], 80)])
def test_default_run_ends_with_accuracy_and_report(
    words: list[str], least: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words]) == 0
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines()[-3:] if ": " in line)
    assert float(told["central model on digits"].removeprefix("accuracy ").split()[0]) >= least
    path = Path(told["report"])
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


def test_a_run_is_repeated_with_the_learners_and_the_engine_that_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["data.limit=200", "epochs=2", "learners=auto"]
    assert main(["train", *words, "run=first"]) == 0
    monkeypatch.setattr("bow.cli.training.run_training", lambda config: configs.append(config) or run_training(config))
    configs: list[TrainConfig] = []
    assert main(["train", "--config", "first/config.yaml"]) == 0
    (again,) = run_dirs()
    start = json.loads(Path("first/metrics.jsonl").read_text().splitlines()[0])
    assert (configs[0].learners, configs[0].engine.name) == (start["learners"], start["engine"])
    assert (again / "model.safetensors").read_bytes() == Path("first/model.safetensors").read_bytes()
    assert start["versions"].startswith(f"bow {bow.__version__}, torch {torch.__version__}, Python ")
    assert {"began", "command", "machine"} <= start.keys()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], ["engine.name=graph", "engine.capture=round", "engine.compile=false"]),
        (["engine.compile=true"], ["engine.name=graph", "engine.capture=round"]),
        (["engine=eager"], []),
    ],
)
def test_a_run_is_repeated_with_the_capture_that_it_found(given: list[str], found: list[str], tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "first", "first")
    directory.write_config({"learners": 1, "engine": {"name": "auto"}})
    directory.metrics_path.write_text('{"kind": "start", "time_s": 0, "learners": 1, "engine": "graph+round"}\n')
    assert training._as_found(directory.config_path, given) == found
    directory.write_config({"learners": "auto", "engine": {"name": "auto"}, "partition": {"path": "p.json"}})
    assert training._as_found(directory.config_path, []) == []


def test_the_repetition_of_a_run_that_was_compiled_in_the_middle_says_what_it_is(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "first", "first")
    directory.write_config({"learners": 1, "engine": {"name": "auto"}})
    records = [
        {"kind": "start", "time_s": 0, "learners": 1, "engine": "graph"},
        {"kind": "calibration", "time_s": 0, "compile": False},
        {"kind": "event", "time_s": 9, "round": 70, "event": "compiled", "message": "1.2 times the samples/s"},
    ]
    directory.metrics_path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    with pytest.warns(UserWarning, match="compiled from round 70 on; this one is not, and equals it to rounding"):
        found = training._as_found(directory.config_path, [])
    assert "engine.compile=false" in found
    assert training._as_found(directory.config_path, ["engine.compile=true"])  # and no warning


def test_a_sweep_is_repeated(refused: Callable[..., str]) -> None:
    words = ["train", "-m", "data.limit=64", "epochs=1", "seed=0,1", "engine=eager"]
    assert main([*words, "run=first"]) == 0
    assert main(["train", "--config", "first/config.yaml", "run=again"]) == 0
    assert_same_models("first", "again")
    next(Path("first/members").glob("*/config.yaml")).unlink()
    refused(["train", "--config", "first/config.yaml"], "is of a sweep with 1 unfinished members")


def test_sweep_checks_every_run_before_the_first() -> None:
    assert main(["train", "-m", *SMALL, "model=mlp,vgg"]) == 2
    assert not Path("runs").exists()


def test_run_without_validation_ends_with_the_training_loss(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "validation=null"]) == 0
    assert "central model on digits: train loss " in capsys.readouterr().out


def test_progress_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "run.progress=false"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_show_prints_the_settings_and_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--show", "learners=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["learners"] == 3
    assert not Path("runs").exists()


def test_report_can_be_written_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "run=here"]) == 0
    assert capsys.readouterr().out.endswith("report: here/report.html\n")
    Path("here/report.html").unlink()
    assert main(["report", "here"]) == 0
    assert Path("here/report.html").exists()
    assert capsys.readouterr().out.endswith("here/report.html\n")


@pytest.mark.filterwarnings("default:scheduler CosineAnnealingLR")
def test_the_rate_of_the_recipe_does_not_rise_again_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["data.limit=64", "learners=4", "engine=eager", "run.progress=false"]  # a round is an epoch
    assert main(["train", *few, "epochs=17"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["train", *few, "steps=17"]) == 0
    assert "T_max=15, and this training steps it 17 times, after every epoch: " in capsys.readouterr().err


def test_learners_are_found_for_goodput(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "data.limit=64", "epochs=1", "learners=auto", "tuner.objective=goodput"]) == 0
    (path,) = run_dirs()
    records = read_records(path / "metrics.jsonl")
    (found,) = [record for record in records if record["kind"] == "calibration"]
    assert found["source"] == "rule"
    assert "rounds are too few to measure" in found["summary"]
    assert f"engine and learners: {found['summary']}" in capsys.readouterr().out
    assert "objective" in (path / "config.yaml").read_text()


def test_the_noise_scale_is_no_value_of_the_validation_data(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bow.training.signals.Signals.noise_scale", 120.0)
    few = ["data.limit=64", "epochs=1", "learners=auto", "validation=null", "run=run"]
    assert main(["train", *few, "tuner.objective=goodput"]) == 0
    assert "central model on digits: train loss " in capsys.readouterr().out
    records = read_records("run/metrics.jsonl")
    (epoch,), (end,) = ([record for record in records if record["kind"] == kind] for kind in ("epoch", "end"))
    assert epoch["noise_scale"] == scalars(epoch)["run/noise_scale"] == 120
    assert metrics(epoch) == metrics(end) == {}
    assert "Gradient noise scale over epochs" in Path("run/report.html").read_text()


@contextlib.contextmanager
def lost(why: str) -> Iterator[None]:
    """Standard output on a full disk, or a pipe that nobody reads any more."""
    if why == "pipe":
        read, write = os.pipe()
        os.close(read)
    else:
        write = os.open("/dev/full", os.O_WRONLY)
    stream = os.fdopen(write, "w")
    with contextlib.redirect_stdout(stream):
        yield
    with contextlib.suppress(OSError):
        stream.close()


@pytest.mark.sample(2)
@pytest.mark.parametrize("why", ["full", "pipe"])
@pytest.mark.parametrize(
    "words", [["train", *SMALL], ["train", "-m", *SMALL[:2], "learners=1,2"]], ids=["one", "sweep"]
)
def test_a_training_does_not_need_its_standard_output(words: list[str], why: str) -> None:
    with lost(why):
        assert main(words) == 0
    assert all((path / "model.safetensors").exists() for path in run_dirs())
    assert len(run_dirs()) == (2 if "-m" in words else 1)


@pytest.mark.parametrize(("why", "status"), [("full", 1), ("pipe", 0)])
def test_what_is_only_said_is_missed_unless_nobody_reads_it(
    why: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with lost(why):
        assert main(["--help"]) == status
    shown = capsys.readouterr().err
    assert shown == ("bow: standard output cannot be written (the disk is full)\n" if status else "")


def test_a_training_in_python_does_not_need_its_standard_output() -> None:
    with lost("pipe"):
        result = bow.train(
            torch.nn.Linear(2, 1), (torch.ones(8, 2), torch.ones(8, 1)), torch.nn.functional.mse_loss,
            learners=1, engine="eager", batch_size=4, devices="cpu",
        )  # fmt: skip
    assert result.model_path is not None


@pytest.mark.filterwarnings("always:the model cannot")
def test_a_model_that_is_not_in_the_run_directory_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def save(model: object, path: str) -> None:
        if "sub/here/" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_model(model, path)

    monkeypatch.setattr("bow.training.result.save_model", save)
    assert main(["train", *SMALL, "run=sub/here"]) == 1
    assert (
        "the model cannot be written to sub/here/model.safetensors (the disk is full); it is" in capsys.readouterr().err
    )
    assert list(Path().glob("*.safetensors"))


def test_a_training_on_synthetic_data_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [
        "data=synthetic",
        "data.samples=32",
        "data.shape=[1,8,8]",
        "data.limit=16",
        "batch_size=8",
    ]
    assert main(["train", *settings, "engine=eager", "learners=1", "run=here"]) == 0
    shown = capsys.readouterr().out
    assert "the data are synthetic" in shown
    assert "central model on synthetic data: accuracy" in shown
    assert "<span>synthetic data</span>" in Path("here/report.html").read_text()
    assert main(["train", *SMALL, "run=digits"]) == 0
    assert "synthetic" not in capsys.readouterr().out + Path("digits/report.html").read_text().partition("</main>")[0]


def test_what_every_trainer_has_is_a_setting_and_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    rule = "{_target_: bow.EarlyStopping, metric: accuracy, patience: 1}"
    words = [f"stop=[{rule},{{_target_: bow.EarlyStopping, patience: 30}}]", "validation.ema=0.5"]
    words += ["engine.accumulate=2", "scheduler={_target_: bow.WarmupCosine, warmup: 0.1}", "optimizer.lr=1.5"]
    given = ["data.limit=64", "learners=2", "engine=eager", "epochs=20", *words]
    assert main(["train", *given, "run=first"]) == 0
    shown = capsys.readouterr().out
    assert "patience: the training ends after" in shown
    assert "best: accuracy" in shown
    assert main(["train", "--config", "first/config.yaml", "run=again"]) == 0
    for name in ("model", "best"):
        assert Path(f"first/{name}.safetensors").read_bytes() == Path(f"again/{name}.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["lr_interval", "strategy", "run_dir"])
def test_settings_of_an_earlier_version_are_refused_with_the_place_of_now(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SMALL, "--show"]) == 0
    Path("config.yaml").write_text(f"{capsys.readouterr().out}{name}: null\n")
    assert main(["train", "--config", "config.yaml"]) == 2
    err = capsys.readouterr().err
    assert err == (
        f"bow: --config config.yaml is of an earlier version: {name} is {MOVED[name][1]} now; correct a copy of it\n"
    )


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("engine: graph", "engine is engine.name=... now"),
        ("devices: auto", "devices is devices.count=... now"),
        ("validation: auto", "validation is validation.data=... now"),
        ("run: null", "run is run.path=... now"),
        ("engine: eager\nprecision: null", "precision is engine.precision=... now, engine is engine.name=... now"),
    ],
)
def test_settings_that_are_sections_now_are_refused_where_they_were_values(
    old: str, now: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SMALL, "run=first"]) == 0
    settings = {**RunDirectory(Path("first")).read_config(), **yaml.safe_load(old)}
    Path("first/config.yaml").write_text(yaml.safe_dump(settings))
    capsys.readouterr()
    for command in (["train", "--config", "first/config.yaml"], ["predict", "first", "validation"]):
        assert main(command) == 2
        assert capsys.readouterr().err == (
            f"bow: --config first/config.yaml is of an earlier version: {now}; correct a copy of it\n"
        )


def test_settings_of_which_some_are_missing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "--show"]) == 0
    settings = yaml.safe_load(capsys.readouterr().out)
    for name in settings:
        Path("config.yaml").write_text(yaml.safe_dump({key: settings[key] for key in settings if key != name}))
        status = main(["train", "--config", "config.yaml", "--show"])
        err = capsys.readouterr().err
        if name not in ("stop", "sweep"):
            assert (status, err.count("\n")) == (2, 1), name
            assert f"lack {name}" in err or f"no {name}." in err, name
