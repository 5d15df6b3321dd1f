"""Times of tiles: which are measured, what is kept, and that nothing is measured twice."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bow.errors import SettingError
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.problem.partition import Split, everything_on, tiles_of
from bow.planning.rules import RULES
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.costs import TileTimes, tile_key
from bow.planning.tiles import tile_costs
from bow.planning.tiles.capture import capture_operators
from bow.planning.tiles.link_benchmark import Measurements
from bow.planning.tiles.machine import core_kind
from bow.planning.tiles.tile_costs import cached_tile_times, measure_tiles, measured_costs, times_cache
from bow.replicas import OptimizerFactory

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
MODEL = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
BATCH = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
CAPTURED = capture_operators(MODEL, BATCH, nn.functional.cross_entropy)
GRAPH = CAPTURED.graph


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The strategies under which steps were run."""
    made: list[Any] = []
    real = tile_costs.TileRuntime

    def counted(captured: Any, strategy: Any, *rest: Any, **settings: Any) -> Any:
        made.append(strategy)
        return real(captured, strategy, *rest, **settings)

    monkeypatch.setattr(tile_costs, "TileRuntime", counted)
    return made


def all_keys(num_devices: int) -> set[str]:
    space = SplitSpace(GRAPH, RULES, 1, devices="every", max_tiles=num_devices)
    return {
        tile_key(GRAPH, RULES, operator, box)
        for number, operator in enumerate(GRAPH.operators)
        for split in space.splits(number)
        for box in tiles_of(GRAPH, operator, split)
    }


def test_every_tile_of_every_split_is_measured_once() -> None:
    before = [parameter.clone() for parameter in MODEL.parameters()]
    times = measure_tiles(CAPTURED, MODEL, BATCH, SGD, 2, repeats=1)
    assert times.tiles.keys() == all_keys(2)
    linear = GRAPH.operators[0]
    (whole,) = tiles_of(GRAPH, linear, everything_on(GRAPH)[0])
    time = times.tiles[tile_key(GRAPH, RULES, linear, whole)]
    assert time.forward_ns > 0
    assert time.backward_ns > 0
    assert times.updates[GRAPH.hash] > 0
    assert all(torch.equal(a, b) for a, b in zip(before, MODEL.parameters(), strict=True))


def test_what_is_known_is_not_measured_again(runs: list[Any]) -> None:
    times = measure_tiles(CAPTURED, MODEL, BATCH, SGD, 1, repeats=1)
    assert len(runs) == 1  # every operator whole
    assert measure_tiles(CAPTURED, MODEL, BATCH, SGD, 1, known=times) == times
    assert len(runs) == 1
    more = measure_tiles(CAPTURED, MODEL, BATCH, SGD, 2, known=times, repeats=1)
    assert len(runs) > 1
    assert all(more.tiles[key] == time for key, time in times.tiles.items())
    assert times.tiles.keys() < more.tiles.keys()


def test_who_waits_is_told_how_many_tiles_are_measured() -> None:
    told: list[tuple[int, int]] = []
    known = measure_tiles(CAPTURED, MODEL, BATCH, SGD, 1, repeats=1)
    times = measure_tiles(
        CAPTURED, MODEL, BATCH, SGD, 2, known=known, repeats=1, on_measured=lambda *how: told.append(how)
    )
    assert told[0] == (len(known.tiles), len(times.tiles))
    assert told[-1] == (len(times.tiles), len(times.tiles))
    assert told == sorted(told)
    assert len(set(told)) > 2


def test_times_are_kept_on_disk_and_read_by_the_next(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tile_costs, "REPEATS", 1)
    times = cached_tile_times(CAPTURED, MODEL, BATCH, SGD, 1)
    assert times_cache(torch.device("cpu"), SGD(MODEL.parameters())).load(TileTimes.from_plain) == times
    count = len(runs)
    assert cached_tile_times(CAPTURED, MODEL, BATCH, SGD, 1) == times
    assert len(runs) == count
    (file,) = (tmp_path / "cache" / "tiles").iterdir()
    file.write_text("damaged", encoding="utf-8")
    cached_tile_times(CAPTURED, MODEL, BATCH, SGD, 1)
    assert len(runs) > count


def test_file_is_another_one_for_other_threads_and_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    def cache(optimizer: OptimizerFactory) -> Measurements:
        return times_cache(torch.device("cpu"), optimizer(MODEL.parameters()))

    def known(optimizer: OptimizerFactory) -> TileTimes | None:
        return cache(optimizer).load(TileTimes.from_plain)

    cache(SGD).keep(TileTimes().to_plain())
    assert known(functools.partial(SGD, lr=0.2)) == TileTimes()
    assert known(torch.optim.AdamW) is None
    assert known(functools.partial(SGD, nesterov=True)) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert known(SGD) is None


def test_a_cache_that_cannot_be_written_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BOW_CACHE", str(tmp_path / "file"))
    with pytest.raises(SettingError, match="set BOW_CACHE to a writable folder"):
        cached_tile_times(CAPTURED, MODEL, BATCH, SGD, 1)


def pair(kind: str) -> DeviceTopology:
    core = DeviceKind(kind, memory_gib=1, tflops=0.05, gb_per_s=8)
    return DeviceTopology("pair", (Device("a", core), Device("b", core)), (Link(("a", "b"), 100.0, 1.0),))


def test_devices_of_this_machine_have_measured_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def quick(*given: Any, **settings: Any) -> Any:
        seen.append(torch.get_num_threads())
        times.append(measure_tiles(*given, repeats=1, **settings))
        return times[0]

    times: list[TileTimes] = []
    monkeypatch.setattr(tile_costs, "cached_tile_times", quick)
    measured_costs(CAPTURED, MODEL, BATCH, pair(core_kind(1)))
    (half, _) = tiles_of(GRAPH, GRAPH.operators[0], Split((2, 1), (0, 1)))
    assert tile_key(GRAPH, RULES, GRAPH.operators[0], half) in times[0].tiles
    assert seen == [1]


def test_costs_of_devices_elsewhere_cannot_be_measured() -> None:
    with pytest.raises(SettingError, match=r"topology 'pair' has p100; use costs=roofline, or topology=machine"):
        measured_costs(CAPTURED, MODEL, BATCH, pair("p100"))
