"""Run directories and their locks."""

import errno
import functools
import os
import re
import signal
import subprocess

import pytest
import torch
import yaml

from bow.errors import RunDirectoryError
from bow.observe import RunDirectory, RunLock
from bow.observe.run_directory import LOCK
from tests.forked import FORKED


def test_a_directory_without_a_name_is_dated(tmp_path):
    directory = RunDirectory.create(None, "lenet", tmp_path / "runs")
    assert directory.path.is_dir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d{6}_lenet", directory.path.name)
    assert directory.path.parent == tmp_path / "runs"


def test_runs_that_start_in_the_same_second_get_directories_of_their_own(tmp_path):
    paths = {RunDirectory.create(None, "lenet", tmp_path).path for _ in range(5)}
    assert len(paths) == 5


def test_a_name_cannot_leave_the_root(tmp_path):
    directory = RunDirectory.create(None, "../../my model", tmp_path)
    assert directory.path.parent == tmp_path
    assert directory.path.name.endswith("my-model")


def test_a_named_directory_is_taken_as_it_is(tmp_path):
    assert RunDirectory.create(tmp_path / "a" / "b", "ignored").path == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_another_run_is_not_overwritten(run):
    directory = run()
    with pytest.raises(RunDirectoryError, match=r'already holds a run.*resume="auto".*another one'):
        RunDirectory.create(directory.path, "run")


def test_a_run_is_resumed_in_its_directory(run):
    directory = run()
    before = directory.metrics_path.read_text()
    assert RunDirectory.create(directory.path, "run", resume=True).path == directory.path
    assert directory.metrics_path.read_text() == before


@pytest.mark.parametrize("path", ["file/run", "file"])
def test_a_directory_that_cannot_be_made_is_an_error_in_one_sentence(tmp_path, path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunDirectoryError, match=rf"{path} cannot be written \(.+\); choose a writable directory"
    ) as caught:
        RunDirectory.create(tmp_path / path, "run")
    assert "\n" not in str(caught.value)


def test_a_root_that_is_a_file_is_an_error_and_not_a_loop(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        RunDirectory.create(None, "lenet", tmp_path / "runs")


def test_a_directory_that_cannot_be_written_is_an_error():
    with pytest.raises(RunDirectoryError, match="/proc/self cannot be written"):
        RunDirectory.create("/proc/self", "run")


def test_settings_are_written_as_yaml_that_people_read(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", "run")
    settings = {
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
        "sync": {"mu": 0.5},
        "shape": (1, 8),
        "name": "größer 🎯",
    }
    directory.write_config(settings)
    expected = {"optimizer": "SGD(lr=0.1)", "sync": {"mu": 0.5}, "shape": [1, 8], "name": "größer 🎯"}
    assert yaml.safe_load(directory.config_path.read_text()) == expected
    assert "name: größer 🎯" in directory.config_path.read_text()
    assert list(directory.read_config()) == ["optimizer", "sync", "shape", "name"]


def test_settings_for_which_there_is_no_room_leave_what_was_there(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", "run")
    part = directory.path / "config.tmp"
    part.symlink_to("/dev/full")
    with pytest.raises(RunDirectoryError, match="the disk is full"):
        directory.write_config({"seed": 1})
    assert not directory.path.exists()
    directory = RunDirectory.create(tmp_path / "run", "run")
    directory.write_config({"seed": 1})
    part.symlink_to("/dev/full")
    with pytest.raises(RunDirectoryError, match="the disk is full"):
        directory.write_config({"seed": 2})
    assert directory.read_config() == {"seed": 1}


def test_a_run_that_ends_behind_its_settings_is_a_run(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", "run")
    directory.write_config({"seed": 1})
    directory.check(resume=True)
    assert directory.holds_run


@pytest.mark.parametrize("text", [b"a: [", b"\xff\xfe\x00", b"only words", None])
def test_settings_that_cannot_be_read_are_empty(tmp_path, text):
    directory = RunDirectory(tmp_path)
    if text is not None:
        directory.config_path.write_bytes(text)
    assert directory.read_config() == {}


def test_files_have_the_names_that_the_documentation_gives(tmp_path):
    directory = RunDirectory(tmp_path)
    files = [directory.config_path, directory.metrics_path, directory.report_path, directory.model_path]
    names = ["config.yaml", "metrics.jsonl", "report.html", "model.safetensors"]
    assert [path.relative_to(tmp_path).as_posix() for path in files] == names
    assert directory.checkpoints == tmp_path / "checkpoints"
    assert not directory.checkpoints.exists()


@pytest.mark.parametrize("name", ["config.yaml", "report.html", "model.safetensors"])
def test_a_file_that_the_run_would_overwrite_is_refused_by_name(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunDirectoryError, match=rf"already has a file {name}, .*; move it away, or name another one"):
        RunDirectory.create(tmp_path, "run")
    assert (tmp_path / name).read_text() == "mine"


def test_checkpoints_alone_are_a_run_too(tmp_path):
    assert not RunDirectory(tmp_path).holds_run
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        RunDirectory.create(tmp_path, "run")


KILLED_BEFORE_ITS_CHILD = """
import os, signal, sys
from pathlib import Path
from bow.observe.run_directory import RunLock

RunLock().take(Path(sys.argv[1]))
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""


def test_a_second_training_is_refused_with_the_process_of_the_first(tmp_path):
    with RunLock() as first, RunLock() as second:
        first.take(tmp_path)
        first.take(tmp_path)
        with pytest.raises(RunDirectoryError, match=rf"in use by another training \(process {os.getpid()}\); wait"):
            second.take(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with RunLock() as third:
        third.take(tmp_path)


def test_a_lock_ends_with_its_process_and_not_with_what_that_has_forked(tmp_path):
    command = [*FORKED, "-c", KILLED_BEFORE_ITS_CHILD, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        RunLock() as lock,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        with pytest.raises(RunDirectoryError, match=rf"process {process.pid}\)"):
            lock.take(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()  # its child waits for the end of its input
        lock.take(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_another_machine_names_it(tmp_path):
    with RunLock() as first, RunLock() as second:
        first.take(tmp_path)
        (tmp_path / LOCK).write_text("12 elsewhere")
        with pytest.raises(RunDirectoryError, match=r"\(process 12 on elsewhere\)"):
            second.take(tmp_path)
        (tmp_path / LOCK).write_text("")
        with pytest.raises(RunDirectoryError, match="another training; wait"):
            second.take(tmp_path)


def test_a_file_that_was_deleted_by_the_training_that_had_it_is_no_lock(tmp_path, monkeypatch):
    flock = RunLock.take.__globals__["fcntl"].flock
    first = RunLock()
    first.take(tmp_path)

    def ends_meanwhile(*arguments):
        first.__exit__()
        flock(*arguments)

    monkeypatch.setattr("fcntl.flock", ends_meanwhile)
    with RunLock() as second, RunLock() as third:
        second.take(tmp_path)
        with pytest.raises(RunDirectoryError, match="in use"):
            third.take(tmp_path)


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with RunLock() as lock, pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\)"):
        lock.take(tmp_path)
