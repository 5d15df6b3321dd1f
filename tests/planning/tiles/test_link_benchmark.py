"""What messages take in use: the chains that are raced, and what becomes of their times."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.simulator.step_model import TaskKind
from bow.planning.tiles import link_benchmark
from bow.planning.tiles.link_benchmark import (
    LAYERS,
    SUMS,
    LinkBenchmark,
    measure_busy_links,
    measured_topology,
)
from bow.planning.tiles.machine import topology_with_assumed_links
from bow.planning.tiles.planning import problem_of
from bow.planning.tiles.program import tile_program

KIND = DeviceKind("core", memory_gib=1, tflops=0.05, gb_per_s=8)
DEVICES = tuple(Device(f"core{number}", KIND) for number in range(3))
TEAM: Any = SimpleNamespace(device=torch.device("cpu"), size=3, rank=0)


class Raced:
    """Races of which it is known how they end."""

    def __init__(self, *_: Any) -> None: ...

    def turn(self, is_timed: bool = True) -> None: ...

    def result(self) -> tuple[tuple[float, float], float]:
        return (300_000.0, 0.5), 300.0


def test_crossed_chain_sends_everything_behind_every_layer_and_the_straight_one_nothing() -> None:
    graph = link_benchmark._chain(8, 4)[2].graph
    straight = data_parallel(graph, RULES, 2)
    crossed = tuple(link_benchmark._crossed(straight, [each.kind == "linear" for each in graph.operators]))
    (linear, *_) = (number for number, each in enumerate(graph.operators) if each.kind == "linear")
    assert crossed[linear] == straight[linear]
    layers = {tensor for each in graph.operators if each.kind == "linear" for tensor in each.outputs}
    parts = [part for of in tile_program(graph, crossed, RULES).sends for part in of if part.tensor in layers]
    assert len(parts) == 2 * LAYERS  # both devices send, behind the last layer too
    assert {end - start for part in parts for start, end in part.box} == {4}  # half of the samples, all of the width
    assert not [part for of in tile_program(graph, straight, RULES).sends for part in of if part.tensor in layers]
    assert link_benchmark._messages(graph, crossed) - link_benchmark._messages(graph, straight) == 4 * LAYERS


@pytest.mark.parametrize(("sum_ns", "sum_us"), [(500_000, 100.0), (400_000, 0.0), (300_000, 0.0)])
def test_a_message_and_a_sum_take_the_time_by_which_they_delay(
    sum_ns: int, sum_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Together:
        """Two devices whose steps take what a clock says."""

        device = torch.device("cpu")

        def all_gather(self, value: list[list[int]]) -> list[list[list[int]]]:
            return [value, [[each - 1000 for each in of] for of in value]]  # the other one is ready sooner

    def step_ns(group: Any, runtime: str, case: Any) -> int:
        return 1_000_000 + (case.count * case.delay_ns if runtime == "communicating" else 0)

    def case(count: int, num_bytes: int, delay_ns: int) -> Any:
        of_both = {"local": "local", "communicating": "communicating"}
        return SimpleNamespace(**of_both, count=count, num_bytes=num_bytes, delay_ns=delay_ns)

    def message_case(group: Any, samples: int, width: int) -> Any:
        return case(32, samples * width * 2, 200_000 + 4 * samples * width)

    monkeypatch.setattr(link_benchmark, "_message_case", message_case)
    monkeypatch.setattr(link_benchmark, "_sum_case", lambda group: case(40, 0, sum_ns))
    monkeypatch.setattr(link_benchmark, "_step_ns", step_ns)
    benchmark = LinkBenchmark(Together())  # type: ignore[arg-type]
    benchmark.turn(is_timed=False)
    for _ in range(3):
        benchmark.turn()
    (latency_ns, ns_per_byte), found_us = benchmark.result()
    assert latency_ns == pytest.approx(200_000, rel=1e-4)
    assert ns_per_byte == pytest.approx(2, rel=1e-4)
    assert found_us == pytest.approx(sum_us, abs=0.1)


def test_only_one_of_two_ways_to_split_batch_norms_sums_over_devices() -> None:
    graph = link_benchmark._chain(link_benchmark.CHANNELS, link_benchmark.CHANNELS, norms=True)[2].graph
    kinds = []
    for devices in ((0, 1, 0, 1), (0, 0, 1, 1)):
        splits = tuple(link_benchmark._quartered(graph, devices))
        kinds.append([task.kind for task in problem_of(graph, "two_cores").simulate(splits).tasks])
    sums = {TaskKind.FORWARD_SUM, TaskKind.BACKWARD_SUM, TaskKind.REDUCTION}
    assert [sum(kind in sums for kind in of) for of in kinds] == [0, SUMS * LAYERS]
    assert sorted(kind for kind in kinds[1] if kind not in sums) == sorted(kinds[0])


LINES = {(0, 1): (100_000.0, 1.0), (0, 2): (120_000.0, 2.0), (1, 2): (140_000.0, 4.0)}
"""What messages take while nothing is computed."""


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_benchmark, "measure_idle_links", lambda group: LINES)
    monkeypatch.setattr(link_benchmark, "LinkBenchmark", Raced)


@pytest.mark.usefixtures("raced")
def test_what_the_first_pair_shows_is_added_to_every_pair() -> None:
    topology = measured_topology(topology_with_assumed_links(DEVICES), *measure_busy_links(TEAM))
    assert [link.latency_us for link in topology.links] == [300.0, 320.0, 340.0]
    assert [link.gb_per_s for link in topology.links] == [1.0, 0.5, 0.25]  # never faster than without computing


@pytest.mark.usefixtures("raced")
def test_of_two_devices_only_what_messages_take_in_use_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_benchmark, "measure_idle_links", lambda group: pytest.fail("nothing else is measured"))
    group: Any = SimpleNamespace(device=torch.device("cpu"), size=2, rank=0)
    topology = measured_topology(topology_with_assumed_links(DEVICES[:2]), *measure_busy_links(group))
    (link,) = topology.links
    assert topology.sum_us == 300.0
    assert (link.latency_us, link.gb_per_s) == (300.0, 2.0)


@pytest.mark.usefixtures("raced")
def test_devices_still_share_the_bus_on_which_their_messages_were_measured() -> None:
    bus = Link(tuple(device.name for device in DEVICES), 8.0, 10.0, shared=True)
    topology = measured_topology(DeviceTopology("here", DEVICES, (bus,)), *measure_busy_links(TEAM))
    assert topology.links == (dataclasses.replace(bus, latency_us=300.0, gb_per_s=1.0),)


def test_one_device_has_no_links() -> None:
    alone: Any = SimpleNamespace(device=torch.device("cpu"), size=1, rank=0)
    assert measured_topology(topology_with_assumed_links(DEVICES[:1]), *measure_busy_links(alone)).links == ()
