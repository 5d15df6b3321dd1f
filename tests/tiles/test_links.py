"""Latency and bandwidth of messages: the line through what was measured, and the topology that it makes."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from bow.planner.device_topology import Device, DeviceKind
from bow.tiles import links
from bow.tiles.links import SIZES, all_lines, fitted_line, measure_links
from bow.tiles.team import Message

KIND = DeviceKind("core", memory_gib=1, tflops=0.05, gb_per_s=8)
DEVICES = tuple(Device(f"core{number}", KIND) for number in range(3))


class Clocked:
    """A team of three devices that pass messages one after another on a clock of their own."""

    def __init__(self, number: int, device: str = "cpu") -> None:
        self.number, self.size = number, len(DEVICES)
        self.device = torch.device("cpu") if device == "cpu" else FakeGPU()
        self.now_ns = 0

    def exchange(self, sends: list[Message], receives: list[Message]) -> tuple[list[Any], list[Any]]:
        for tensor, other, _ in [*sends, *receives]:
            slower = 2 if {self.number, other} == {0, 1} else 1
            self.now_ns += slower * 50_000 + tensor.numel()  # 1 GB/s
        return [], []

    def everyone(self, value: Any) -> list[Any]:
        teams = [Clocked(number) for number in range(self.size)]
        pairs = [(0, 1), (0, 2), (1, 2)]
        return [{pair: found_by(team, *pair) for pair in pairs if pair[0] == team.number} for team in teams]


class FakeGPU:
    type = "cuda"


def found_by(team: Clocked, first: int, second: int) -> tuple[float, float]:
    return (100_000.0 if (first, second) == (0, 1) else 50_000.0), 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    team = Clocked(0)
    monkeypatch.setattr(links.time, "perf_counter_ns", lambda: team.now_ns)
    return team


def test_line_counts_small_and_large_messages_alike() -> None:
    exact = [120_000 + 0.7 * size for size in SIZES]
    assert fitted_line(SIZES, exact) == pytest.approx((120_000, 0.7), rel=1e-4)
    off = [*exact[:-1], 1.2 * exact[-1]]
    latency, ns_per_byte = fitted_line(SIZES, off)
    assert latency == pytest.approx(120_000, rel=0.05)
    assert 0.7 < ns_per_byte < 0.85


def test_line_is_never_negative() -> None:
    latency, ns_per_byte = fitted_line([10, 100], [100.0, 10.0])
    assert latency >= 0
    assert ns_per_byte > 0


def test_messages_of_every_size_are_timed_one_way(clock: Clocked) -> None:
    one_way = functools.partial(links._one_way_ns, clock, 0)  # type: ignore[arg-type]
    assert [one_way(2, size) for size in SIZES] == [50_000 + size for size in SIZES]
    assert one_way(1, 256) == 100_256


@pytest.mark.parametrize(("device", "overlap"), [("cpu", False), ("cuda", True)])
def test_every_pair_has_a_link_and_only_gpus_compute_meanwhile(
    device: str, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_line", lambda team, *pair: found_by(team, *pair) if team.number in pair else None)
    topology = measure_links(Clocked(0, device), DEVICES, "here")  # type: ignore[arg-type]
    assert [(link.ends, link.latency_us, link.gb_per_s) for link in topology.links] == [
        (("core0", "core1"), 100.0, 1.0),
        (("core0", "core2"), 50.0, 1.0),
        (("core1", "core2"), 50.0, 1.0),
    ]
    assert not any(link.shared for link in topology.links)
    assert (topology.name, topology.overlap) == ("here", overlap)


def test_no_two_pairs_are_measured_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4
    meeting, told, under_way = threading.Barrier(size), [None] * size, list[tuple[int, int]]()
    seen: list[set[tuple[int, int]]] = []

    class Member:
        """One of four devices, each of which is a thread."""

        def __init__(self, number: int) -> None:
            self.number, self.size = number, size

        def everyone(self, value: Any) -> Sequence[Any]:
            told[self.number] = value
            meeting.wait(10)
            values = list(told)
            meeting.wait(10)
            return values

    def line(team: Member, *pair: int) -> tuple[float, float] | None:
        if team.number not in pair:
            return None
        under_way.append((pair[0], pair[1]))
        time.sleep(0.002)
        seen.append(set(under_way))
        under_way.remove((pair[0], pair[1]))
        return float(pair[0]), float(pair[1])

    monkeypatch.setattr(links, "_line", line)
    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(all_lines, map(Member, range(size))))  # type: ignore[arg-type]
    pairs = list(itertools.combinations(range(size), 2))
    assert [len(of) for of in seen] == [1] * 2 * len(pairs)
    assert found == [{pair: (float(pair[0]), float(pair[1])) for pair in pairs}] * size
