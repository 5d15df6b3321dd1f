import errno
import os
import signal
import subprocess
import sys

import pytest

from bow.errors import RunDirectoryError
from bow.observe import RunLock
from bow.observe.run_lock import NAME

KILLED_BEFORE_ITS_CHILD = """
import os, signal, sys
from pathlib import Path
from bow.observe.run_lock import RunLock

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
    command = [sys.executable, "-c", KILLED_BEFORE_ITS_CHILD, str(tmp_path)]
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
        (tmp_path / NAME).write_text("12 elsewhere")
        with pytest.raises(RunDirectoryError, match=r"\(process 12 on elsewhere\)"):
            second.take(tmp_path)
        (tmp_path / NAME).write_text("")
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
