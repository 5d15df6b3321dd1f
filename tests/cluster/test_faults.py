"""A process that ends, hangs or cannot begin ends the training of all, soon, and says why."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from bow.cluster import World, heart
from bow.errors import ClusterError, SettingError
from tests.cluster.worlds import in_world


def compute(world: World, rounds: int = 100_000) -> int:
    for _ in range(rounds):
        world.sum(torch.ones(3)).wait()
    return rounds


def fail_at_rank_1(world: World) -> int:
    if world.rank == 1:
        raise SettingError("colour must be red, got blue")
    return compute(world)


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


def test_what_a_process_has_said_is_what_the_caller_hears() -> None:
    with pytest.raises(ClusterError, match="rank 1: colour must be red, got blue"):
        in_world(2, fail_at_rank_1)


def test_a_process_that_is_killed_ends_the_training() -> None:
    began = time.monotonic()
    with pytest.raises(ClusterError, match="rank 2 ended with signal SIGKILL"):
        in_world(3, kill_rank_2)
    assert time.monotonic() - began < 240


def test_a_process_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heart, "MISSED_S", 4.0)
    began = time.monotonic()
    with pytest.raises(ClusterError, match="rank 1 was not heard of for 4 s"):
        in_world(2, stop_rank_1)
    assert time.monotonic() - began < 240


def test_the_callers_own_error_ends_the_others() -> None:
    began = time.monotonic()
    with pytest.raises(KeyError):
        in_world(3, leave_rank_0)
    assert time.monotonic() - began < 240


def test_what_cannot_be_sent_is_refused_before_anything_starts() -> None:
    lock = threading.Lock()
    with pytest.raises(SettingError, match="cannot be sent to other processes"):
        in_world(2, lambda world: lock.locked())
