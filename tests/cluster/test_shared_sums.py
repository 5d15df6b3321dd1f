"""Sums in memory that processes share: those of Gloo, also where they grow, and an error where a process goes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster.worlds import in_world

from bow.cluster import World, shared_sums
from bow.cluster.processes import Processes
from bow.errors import ClusterError

pytestmark = pytest.mark.skipif(not shared_sums.is_possible(), reason="needs /dev/shm and an x86 processor")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where rank 0 makes the files; none is left."""
    monkeypatch.setattr(shared_sums, "FOLDER", tmp_path)
    yield
    assert not list(tmp_path.iterdir())


def addend(rank: int, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + number)
    length = random.Random(number).choice([1, 7, 1000, 70_000])
    dtype = random.Random(number + 1).choice([torch.float32, torch.float64, torch.bfloat16])
    return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)


def many_sums(world: World) -> list[Any]:
    assert isinstance(world, Processes)
    delays, found, shared = random.Random(world.rank), [], 0
    for number in range(60):
        if not delays.randrange(8):
            time.sleep(0.005)
        own = addend(world.rank, number)
        pending = world.sum(own)
        if not delays.randrange(8):
            time.sleep(0.005)
        pending.wait()
        found.append(own)
        shared += world._shared is not None
    return [shared, found]


@pytest.mark.parametrize("size", [2, 3])
def test_all_processes_have_the_sum_in_the_order_of_ranks(size: int) -> None:
    for shared, found in in_world(size, many_sums):
        assert shared == len(found)
        for number, got in enumerate(found):
            first, *others = (addend(rank, number) for rank in range(size))
            for other in others:
                first = first + other
            assert torch.equal(got, first)


def several_under_way(world: World) -> list[torch.Tensor]:
    own = [addend(world.rank, number) for number in range(8)]
    pending = [world.sum(tensor) for tensor in own]
    for each in reversed(pending):
        each.wait()
    return own


def test_several_sums_may_be_under_way() -> None:
    for found in in_world(2, several_under_way):
        assert all(torch.equal(got, addend(0, number) + addend(1, number)) for number, got in enumerate(found))


def lacking(world: World) -> list[Any]:
    """Rank 1 finds no memory that it could share."""
    assert isinstance(world, Processes)
    if world.rank == 1:
        shared_sums.SharedSums.__init__ = _no_memory  # type: ignore[method-assign]
    own = addend(world.rank, 3)
    world.sum(own).wait()
    return [world._shared is None, own]


def _no_memory(*arguments: Any) -> None:
    raise OSError("no memory")


def test_where_one_cannot_share_all_sum_by_gloo() -> None:
    expected = addend(0, 3) + addend(1, 3)
    assert all(by_gloo and torch.equal(got, expected) for by_gloo, got in in_world(2, lacking))


def test_no_room_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", _no_memory)
    assert all(by_gloo for by_gloo, _ in in_world(2, lambda world: [summed(world) is None, 0]))


def summed(world: World) -> Any:
    assert isinstance(world, Processes)
    world.sum(torch.ones(3)).wait()
    return world._shared


@pytest.mark.parametrize("ending", ["killed", "raised"])
def test_a_process_that_goes_ends_the_sum_of_the_others(ending: str) -> None:
    def leaving(world: World) -> int:
        summed(world)
        if world.rank == 1:
            if ending == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("out")
        summed(world)
        return 0

    began = time.monotonic()
    with pytest.raises(ClusterError, match=r"rank 1|out"):
        in_world(2, leaving)
    assert time.monotonic() - began < 60
