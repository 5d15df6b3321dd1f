"""Latency and bandwidth of messages: the line through what was measured, and the topology that it makes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from typing import Any

import pytest
import torch

from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.tiles import link_benchmark
from bow.planning.tiles.communication import Message
from bow.planning.tiles.link_benchmark import SIZES, fitted_link, measure_idle_links, measured_topology
from tests.planning.tiles.thread_group import ThreadRank, thread_group, together

KIND = DeviceKind("core", memory_gib=1, tflops=0.05, gb_per_s=8)
SIZE = 3


class Clocked:
    """A group of three devices that pass messages one after another on a clock of their own."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size, self.device = rank, SIZE, torch.device("cpu")
        self.now_ns = 0

    def exchange(self, sends: list[Message], receives: list[Message]) -> tuple[list[Any], list[Any]]:
        for tensor, other, _ in [*sends, *receives]:
            slower = 2 if {self.rank, other} == {0, 1} else 1
            self.now_ns += slower * 50_000 + tensor.numel()  # 1 GB/s
        return [], []

    def all_gather(self, value: Any) -> list[Any]:
        teams = [Clocked(rank) for rank in range(self.size)]
        pairs = [(0, 1), (0, 2), (1, 2)]
        return [{pair: found_by(group, *pair) for pair in pairs if pair[0] == group.rank} for group in teams]


def found_by(group: Clocked, first: int, second: int) -> tuple[float, float]:
    return (100_000.0 if (first, second) == (0, 1) else 50_000.0), 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    group = Clocked(0)
    monkeypatch.setattr(link_benchmark.time, "perf_counter_ns", lambda: group.now_ns)
    return group


def test_line_counts_small_and_large_messages_alike() -> None:
    exact = [120_000 + 0.7 * size for size in SIZES]
    assert fitted_link(SIZES, exact) == pytest.approx((120_000, 0.7), rel=1e-4)
    off = [*exact[:-1], 1.2 * exact[-1]]
    latency, ns_per_byte = fitted_link(SIZES, off)
    assert latency == pytest.approx(120_000, rel=0.05)
    assert 0.7 < ns_per_byte < 0.85


def test_line_is_never_negative() -> None:
    latency, ns_per_byte = fitted_link([10, 100], [100.0, 10.0])
    assert latency >= 0
    assert ns_per_byte > 0


def test_messages_of_every_size_are_timed_one_way(clock: Clocked) -> None:
    one_way = functools.partial(link_benchmark._one_way_ns, clock, 0)  # type: ignore[arg-type]
    assert [one_way(2, size) for size in SIZES] == [50_000 + size for size in SIZES]
    assert one_way(1, 256) == 100_256


def test_every_pair_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        link_benchmark, "_pair_model", lambda group, *pair: found_by(group, *pair) if group.rank in pair else None
    )
    assert measure_idle_links(Clocked(0)) == {(0, 1): (1e5, 1.0), (0, 2): (5e4, 1.0), (1, 2): (5e4, 1.0)}  # type: ignore[arg-type]


def test_links_keep_who_shares_them_and_are_as_fast_as_the_fastest_of_their_pairs() -> None:
    nvlink, bus = Link(("gpu0", "gpu1"), 3.0, 40.0), Link(("gpu0", "gpu1", "gpu2", "gpu3"), 8.0, 10.0, shared=True)
    gpus = tuple(Device(f"gpu{number}", KIND) for number in range(4))
    known = DeviceTopology("here", gpus, (bus, nvlink), overlap=False)
    lines = {pair: (9_000.0, 0.2) for pair in itertools.combinations(range(4), 2)}
    lines |= {(0, 1): (2_000.0, 0.025), (1, 3): (8_500.0, 0.125)}
    topology = measured_topology(known, lines, sum_us=3.0)
    assert topology.links == (
        dataclasses.replace(bus, latency_us=8.5, gb_per_s=8.0),
        dataclasses.replace(nvlink, latency_us=2.0, gb_per_s=40.0),
    )
    assert (topology.name, topology.devices, topology.overlap, topology.sum_us) == ("here", gpus, False, 3.0)
    assert topology.route(0, 2) == topology.route(3, 1)  # two transfers take turns
    assert topology.route(0, 1) != topology.route(1, 0)


def test_no_two_pairs_are_measured_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4
    under_way: list[tuple[int, int]] = []
    seen: list[set[tuple[int, int]]] = []

    def line(group: ThreadRank, *pair: int) -> tuple[float, float] | None:
        if group.rank not in pair:
            return None
        under_way.append((pair[0], pair[1]))
        time.sleep(0.002)
        seen.append(set(under_way))
        under_way.remove((pair[0], pair[1]))
        return float(pair[0]), float(pair[1])

    monkeypatch.setattr(link_benchmark, "_pair_model", line)
    found = together(measure_idle_links, thread_group(size))
    pairs = list(itertools.combinations(range(size), 2))
    assert [len(of) for of in seen] == [1] * 2 * len(pairs)
    assert found == [{pair: (float(pair[0]), float(pair[1])) for pair in pairs}] * size
