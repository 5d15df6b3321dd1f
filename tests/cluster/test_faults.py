"""A process that ends, hangs or cannot begin ends the training of all, soon, and says why."""

from __future__ import annotations

import errno
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore

from bow.cluster import World, heartbeat, launch, processes
from bow.errors import ClusterError, SettingError
from tests.cluster.worlds import in_world, soon


def compute(world: World, rounds: int = 100_000) -> int:
    for _ in range(rounds):
        world.sum(torch.ones(3)).wait()
    return rounds


def fail_at_rank_1(world: World) -> int:
    if world.rank == 1:
        raise SettingError("colour must be red, got blue")
    return compute(world)


def fail_and_stay(world: World) -> int:
    if world.rank == 1:
        threading.Thread(target=time.sleep, args=(3 * launch.GRACE_S,)).start()  # the process ends with it
    return fail_at_rank_1(world)


def kill_rank_2(world: World) -> int:
    if world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(world)


def stop_rank_1(world: World) -> int:
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return compute(world)


def leave_rank_0(world: World) -> int:
    if world.rank == 0:
        raise KeyError("of the caller's own")
    return compute(world)


@pytest.mark.parametrize("function", [fail_at_rank_1, fail_and_stay])
def test_what_a_process_has_said_is_what_the_caller_hears(function: Callable[[World], int]) -> None:
    with pytest.raises(ClusterError, match="rank 1: colour must be red, got blue"):
        in_world(2, function)


def test_a_process_that_is_killed_ends_the_training() -> None:
    with soon(), pytest.raises(ClusterError, match=r"rank 2 ended with signal SIGKILL; check its output$"):
        in_world(3, kill_rank_2)


def test_a_process_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "MISSED_S", 1.0)
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.1)
    with soon(), pytest.raises(ClusterError, match=r"rank 1 sent no heartbeat for 1 s.*, and go on with another$"):
        in_world(2, stop_rank_1, remedy="go on with another")


def rank_of(world: World) -> int:
    return world.rank


def test_processes_meet_after_others_have_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", timedelta(milliseconds=100))
    with pytest.raises(ClusterError, match="another process has ended or cannot be reached"):
        processes.Processes(torch.device("cpu"), processes.Ranks(0, 2, 0, 2), HashStore())
    monkeypatch.setattr(processes, "PATIENCE", timedelta(seconds=120))
    assert in_world(2, rank_of) == [0, 1]


def test_a_process_that_computes_is_not_silent_and_one_that_is_stopped_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "MISSED_S", 0.2)
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    store, silent = HashStore(), queue.Queue[int]()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            store.set("bow/heartbeat/1", f"1 {heartbeat.place()} {busy.pid}")
            with heartbeat.Heartbeat(lambda: store, 0, 2, on_silence=lambda rank, why: silent.put(rank)):
                while not (store.check(["bow/heartbeat/0"]) and int(store.get("bow/heartbeat/0").split()[0]) > 50):
                    assert silent.empty()
                busy.send_signal(signal.SIGSTOP)
                assert silent.get(timeout=600) == 1
        finally:
            busy.kill()


def test_a_listener_whose_connection_fails_opens_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    opened = queue.Queue[HashStore]()

    class Broken(HashStore):
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("timed out; the answer is still on its way")

    def connect() -> HashStore:
        opened.put(Broken())
        return opened.queue[-1]

    with heartbeat.Heartbeat(connect, 0, 2, on_silence=lambda rank, why: None):
        assert opened.get(timeout=600) is not opened.get(timeout=600)


def test_the_callers_own_error_ends_the_others() -> None:
    with soon(), pytest.raises(KeyError):
        in_world(3, leave_rank_0)


def test_too_few_open_files_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(SettingError, match=r"2 processes need about \d+ open files .* and 24 are allowed"):
        in_world(2, compute)


def test_a_process_that_cannot_be_started_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(SettingError, match=r"process 1 of 2 cannot be started .*temporarily unavailable"):
        in_world(2, compute)


def test_what_cannot_be_sent_is_refused_before_anything_starts() -> None:
    lock = threading.Lock()
    with pytest.raises(SettingError, match="cannot be pickled for the worker processes"):
        in_world(2, lambda world: lock.locked())
