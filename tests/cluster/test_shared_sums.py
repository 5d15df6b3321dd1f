"""Sums in memory that processes share: those of Gloo, also where they grow, and an error where a process goes."""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import time
import weakref
from typing import Any

import pytest
import torch

from bow.cluster import World, shared_sums
from bow.cluster.processes import Processes
from bow.errors import ClusterError
from tests.cluster.worlds import in_world, soon

pytestmark = pytest.mark.skipif(not shared_sums.is_possible(), reason="needs Linux on an x86 processor")


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


def buffers(rank: int) -> dict[str, torch.Tensor]:
    numbers = torch.arange(24, dtype=torch.float64).view(4, 6) + 100 * rank
    return {
        "expanded": numbers[1, 1:2].expand(1000),
        "with gaps": numbers[2:, ::2],
        "transposed": numbers.clone().t(),
        "short": numbers.short(),
        "flags": numbers % 3 == rank,
        "one": numbers[0, 0].clone(),
        "none": torch.empty(0, 3),
    }


def broadcast(world: World) -> dict[str, torch.Tensor]:
    own = buffers(world.rank)
    world.broadcast_tensors(list(own.values()))
    return own


def test_buffers_of_any_layout_and_type_are_those_of_the_first_device() -> None:
    for found in in_world(2, broadcast):
        for name, expected in buffers(0).items():
            assert torch.equal(found[name], expected), name


def several_under_way(world: World) -> list[torch.Tensor]:
    own = [addend(world.rank, number) for number in range(8)]
    pending = [world.sum(tensor) for tensor in own]
    for each in reversed(pending):
        each.wait()
    return own


def test_several_sums_may_be_under_way() -> None:
    for found in in_world(2, several_under_way):
        assert all(torch.equal(got, addend(0, number) + addend(1, number)) for number, got in enumerate(found))


def grown(world: World) -> bool:
    """Whether memory that has become too small is given back at once."""
    assert isinstance(world, Processes)
    gc.disable()
    world.sum(torch.ones(3)).wait()
    small = weakref.ref(world._shared)  # type: ignore[arg-type]
    world.sum(torch.ones(3000)).wait()
    return small() is None


def test_memory_is_given_back_without_a_collector_of_garbage() -> None:
    assert in_world(2, grown) == [True, True]


def lacking(world: World, what: str) -> list[Any]:
    """Rank 1 finds no memory that it could share, or is in a container of its own."""
    assert isinstance(world, Processes)
    if world.rank == 1:
        if what == "memory":
            shared_sums.SharedSums.__init__ = _no_memory  # type: ignore[method-assign]
        else:
            shared_sums.place = lambda: "elsewhere"
    own = addend(world.rank, 3)
    world.sum(own).wait()
    return [world._shared is None, own]


def _no_memory(*arguments: Any) -> None:
    raise OSError("no memory")


@pytest.mark.parametrize("what", ["memory", "place"])
def test_where_one_cannot_share_all_sum_by_gloo(what: str) -> None:
    expected = addend(0, 3) + addend(1, 3)
    found = in_world(2, functools.partial(lacking, what=what))
    assert all(by_gloo and torch.equal(got, expected) for by_gloo, got in found)


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

    with soon(), pytest.raises(ClusterError, match=r"rank 1|out"):
        in_world(2, leaving)


def withdrawn(world: World) -> list[float]:
    own = torch.tensor([1.0 + world.rank])
    pending = world.sum(own)
    if world.rank == 1:
        pending.withdraw()
    world.all_gather(None)  # now nobody reads what was withdrawn
    if world.rank == 1:
        own = torch.tensor([5.0])
        pending = world.sum(own)
    pending.wait()
    after = torch.tensor([10.0])
    world.sum(after).wait()
    return [float(own), float(after)]


def test_a_contribution_that_is_withdrawn_is_replaced_by_the_next() -> None:
    assert in_world(2, withdrawn) == [[6.0, 20.0]] * 2
