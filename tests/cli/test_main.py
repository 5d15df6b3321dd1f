import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import bow
from bow.cli import main
from tests.forked import FORKED


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert all(f"bow {command}" in shown for command in ("train", "report", "doctor"))


@pytest.mark.parametrize("command", ["train", "report", "doctor"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: bow {command}")


@pytest.mark.parametrize("width", [80, 70])
@pytest.mark.parametrize("command", ["", "train", "report", "doctor", "plan", "schedule"])
def test_help_is_as_wide_as_the_terminal(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > width] == []


TRAINING = "train model=logistic_regression engine=eager learners=1 steps=3 run=run"
CLOSED = f"""
import os, runpy, sys
sys.stdin = sys.stdout = sys.stderr = None  # as Python finds them where the shell has closed them
for number in range(3):
    os.close(number)
sys.argv[1:] = {TRAINING.split()!r}
runpy.run_module("bow", run_name="__main__")
"""


@pytest.mark.parametrize(
    "command",
    [
        [*FORKED, "-c", CLOSED],
        pytest.param(
            ["sh", "-c", f"exec {sys.executable} -m bow {TRAINING} <&- >&- 2>&-"],
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["by Python", "by the shell"],
)
def test_streams_that_are_closed_end_nothing(command: list[str], tmp_path: Path) -> None:
    path = {"PYTHONPATH": str(Path(bow.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **path}, check=False)
    assert done.returncode == 0
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_commands_one_after_another_do_without_an_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python does if the shell has closed it
    assert main(TRAINING.split()) == main(["doctor", "--help"]) == main(["--version"]) == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bow {bow.__version__}\n"


def test_what_is_quiet_prints_errors_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("bow.cli.diagnosis.advice", lambda machine: ["what takes seconds to measure"])
    assert main(["doctor", "-q"]) == 0
    assert main(["--quiet", "trian"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "bow: 'trian' is not a command; did you mean train?\n"


def test_interruption_is_one_line_and_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bow.cli.training.run_training", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "bow: interrupted\n"


def test_interrupting_the_real_command_ends_it(tmp_path: Path) -> None:
    command = [
        *FORKED,
        "-u",
        "-m",
        "bow",
        "train",
        "model=logistic_regression",
        "epochs=100000",
        "learners=1",
        "engine=eager",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What runs in the background of a shell ignores Ctrl-C, and so does what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()  # the first epoch is over: training is under way
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        said = process.stderr.read()
        assert said.startswith("bow: interrupted; there is a checkpoint of round ")
        assert "run.resume=auto" in said
        assert said.count("\n") == 1
    assert process.returncode == 130


def test_defects_of_bow_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(*_: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr("bow.cli.training.run_training", defective)
    with pytest.raises(LookupError):
        main(["train"])


@pytest.mark.filterwarnings("always")
def test_warnings_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def warns(*_: object) -> None:
        warnings.warn("one thing\nand another", stacklevel=1)
        raise bow.BowError("the end")

    monkeypatch.setattr("bow.cli.training.run_training", warns)
    assert main(["train"]) == 2
    assert capsys.readouterr().err == "bow: warning: one thing and another\nbow: the end\n"


@pytest.mark.parametrize(
    ("first", "given", "policy"), [("sys", None, "PASSIVE"), ("sys", "ACTIVE", "ACTIVE"), ("torch", None, "None")]
)
def test_threads_wait_without_spinning_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: str, given: str | None, policy: str
) -> None:
    (tmp_path / "torch.py").touch()  # what counts is that it has been imported, and torch takes seconds
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(bow.__file__).parents[1])])}
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    code = f"import {first}, bow, os; print(os.environ.get('OMP_WAIT_POLICY'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [policy]
