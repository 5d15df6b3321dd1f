"""`bow train -m`: runs that differ in what a member may differ in train side by side, all others one after another."""

import itertools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from bow.cli import main
from bow.devices import num_threads
from bow.members import loop
from bow.members.trainings import TrainingsLoop

SMALL = ["data.limit=64", "epochs=2", "engine=eager"]


def assert_same_models(folder: str, other: str) -> None:
    """Of single runs, or of all members of sweeps."""
    files = sorted(path.relative_to(folder) for path in Path(folder).rglob("model.safetensors"))
    assert files
    assert files == sorted(path.relative_to(other) for path in Path(other).rglob("model.safetensors"))
    assert all((Path(folder) / file).read_bytes() == (Path(other) / file).read_bytes() for file in files)


def assert_is_alone(member: str) -> None:
    """A member has the model that it gets alone."""
    models = [load_file(f"{folder}/model.safetensors") for folder in (member, "alone")]
    assert all(torch.equal(models[0][name], value) for name, value in models[1].items())


def test_seeds_and_rates_train_side_by_side_to_what_each_becomes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", *SMALL, "optimizer.lr=0.1,0.2", "seed=range(2)", "run=sweep"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("4 runs side by side, one learner each instead of 4 (sweep=one_by_one: in turn)\n")
    assert "accuracy by lr, paired" in shown
    assert shown.endswith("report: sweep/report.html\n")
    assert max(map(len, shown.splitlines())) <= 80
    rows = json.loads(Path("sweep/members.json").read_text())
    assert [row["name"] for row in rows] == [f"seed={s} lr={lr}" for lr in (0.1, 0.2) for s in (0, 1)]
    assert rows[3]["settings"].items() > {"seed": 1, "lr": 0.2, "momentum": 0.9, "optimizer": "SGD"}.items()
    own = f"sweep/{rows[3]['folder']}"
    with num_threads(1):
        assert main(["train", *SMALL, "learners=1", "optimizer.lr=0.2", "seed=1", "run=alone"]) == 0
        assert main(["train", "--config", f"{own}/config.yaml", "run=again"]) == 0
    assert_is_alone(own)
    assert_same_models("again", "alone")
    assert main(["train", "-m", *SMALL, "optimizer.lr=0.1,0.2", "seed=range(2)", "run=sweep"]) != 0
    assert "run.resume=auto" in "".join(capsys.readouterr())


def test_runs_of_several_learners_are_one_sweep_of_what_each_becomes_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, "sync=easgd", "learners=2"]
    sweep = ["train", "-m", *words, "optimizer.lr=0.1,0.2", "seed=range(2)"]
    assert main([*sweep, "run=sweep"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("4 runs of 2 learners (sweep=one_by_one: a report each)\n")
    assert "accuracy by lr, paired" in shown
    assert max(map(len, shown.splitlines())) <= 80
    own = f"sweep/{json.loads(Path('sweep/members.json').read_text())[3]['folder']}"
    assert main(["train", *words, "optimizer.lr=0.2", "seed=1", "run=alone"]) == 0
    assert main(["train", "--config", f"{own}/config.yaml", "run=again"]) == 0
    assert_is_alone(own)
    assert_same_models("again", "alone")
    before = TrainingsLoop._epoch_ended

    def interrupted(self: Any, progress: Any, run: Any) -> Any:
        if progress.member.number == 1 and run.epoch == 1:
            signal.raise_signal(signal.SIGINT)
        return before(self, progress, run)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingsLoop, "_epoch_ended", interrupted)
        assert main([*sweep, "run=here"]) == 130
    assert main([*sweep, "run=here", "run.resume=auto"]) == 0
    assert_same_models("sweep", "here")


def test_batch_sizes_and_schedules_may_differ() -> None:
    schedules = ",".join(f"{{_target_: torch.optim.lr_scheduler.StepLR, step_size: {size}}}" for size in (1, 2))
    assert main(["train", "-m", *SMALL, "batch_size=16,32", f"scheduler={schedules}"]) == 0
    (sweep,) = Path("runs").iterdir()
    settings = [yaml.safe_load(path.read_text()) for path in sorted(sweep.glob("members/*/config.yaml"))]
    found = [(each["batch_size"], each["scheduler"]["step_size"]) for each in settings]
    assert found == [(16, 1), (16, 2), (32, 1), (32, 2)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["learners=1,2"], "they differ in learners"),
        (["seed=0,1", "model=mlp,lenet"], "they differ in model"),
        (["seed=0,1", "sync=easgd"], "sync=EASGD changes what one learner does"),
        (["seed=0,1", "validation.every=0.5"], "validation.every=0.5"),
        (["seed=0,1", "run.path=runs/${seed}"], "they differ in run.path"),
    ],
)
def test_other_runs_go_one_after_another_and_say_why(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "-m", "data.limit=64", "epochs=1", "engine=eager", *words]) == 0
    shown = capsys.readouterr().out
    assert f"runs one after another: {why}" in shown.splitlines()[0]
    assert "all runs" in shown
    assert len(list(Path("runs").iterdir())) >= 2


def test_what_goes_on_from_a_checkpoint_goes_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "learners=1"]
    assert main(["train", *words, "run=before", "run.checkpoint_every=2"]) == 0
    capsys.readouterr()
    assert main(["train", "-m", *words, "run.resume=before", "seed=0,0"]) == 0
    assert capsys.readouterr().out.startswith("2 runs one after another: they resume from a checkpoint\n")


def test_one_by_one_is_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", "data.limit=64", "epochs=1", "seed=0,1", "sweep=one_by_one"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("[1/2]")
    assert "side by side" not in shown
    assert len(list(Path("runs").iterdir())) == 2


def test_one_directory_for_runs_one_after_another_is_refused(refused: Callable[..., str]) -> None:
    words = ["train", "-m", *SMALL, "seed=0,1"]
    refused([*words, "sweep=one_by_one", "run=here"], "one directory for 2 runs")
    refused([*words, "sweep=sideways"], "sweep must be side_by_side or one_by_one, got sideways")
    assert not Path("runs").exists()


def test_a_rate_that_diverges_ends_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", *SMALL, "optimizer.lr=0.1,1e30"]) == 0
    assert "diverged" in capsys.readouterr().out
    assert main(["train", "-m", *SMALL, "optimizer.lr=1e30", "seed=0,1"]) == 1


def test_a_sweep_that_was_interrupted_goes_on_where_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    words = ["train", "-m", *SMALL, "seed=range(3)"]
    before, rounds = loop.SweepLoop._round, itertools.count()

    def interrupted(self: Any, cohorts: Any) -> None:
        if next(rounds) == 5:
            signal.raise_signal(signal.SIGINT)
        before(self, cohorts)

    with monkeypatch.context() as patch:
        patch.setattr(loop.SweepLoop, "_round", interrupted)
        assert main([*words, "run=here"]) == 130
    said = capsys.readouterr().err
    assert said == "bow: interrupted; resume with the same command and run=here run.resume=auto\n"
    refused([*words, "run=here"], "already holds a run")
    other = [word.replace("data.limit=64", "data.limit=32") for word in words]
    refused([*other, "run=here", "run.resume=auto"], "is of a sweep that is given other data than it was started with")
    assert main([*words, "run=here", "run.resume=auto"]) == 0
    assert main([*words, "run=whole"]) == 0
    assert_same_models("whole", "here")
    assert main([*words, "run=here", "run.resume=auto"]) == 0


def test_loggers_get_a_run_for_each_member(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", *SMALL, "seed=0,1", "logger=tensorboard", "run=logged"]) == 0
    assert "side by side" in capsys.readouterr().out
    assert len({events.parents[0] for events in Path("logged/members").rglob("*tfevents*")}) == 2


def test_one_run_of_a_sweep_is_a_run(capsys: pytest.CaptureFixture[str], refused: Callable[..., str]) -> None:
    assert main(["train", "-m", *SMALL, "seed=3", "learners=1", "run=one"]) == 0
    assert Path("one/model.safetensors").exists()
    assert "side by side" not in capsys.readouterr().out
    refused(["train", "-m", *SMALL, "seed=0,x"])


def test_a_rule_ends_the_members_of_a_sweep(tmp_path: Path) -> None:
    rule = "stop={_target_: bow.EarlyStopping, metric: accuracy, patience: 1}"
    given = ["data.limit=64", "learners=1", "engine=eager", "epochs=9", rule, f"run={tmp_path / 'side'}"]
    assert main(["train", "-m", "optimizer.lr=.05,.5", *given]) == 0
    members = json.loads((tmp_path / "side/members.json").read_text())
    assert [member["stopped"] for member in members] == ["patience", "patience"]
