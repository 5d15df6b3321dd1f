"""What messages take in use: kept, and measured where it is not kept."""

from __future__ import annotations

import json
import threading
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch

from bow.errors import RuntimeUnavailableError
from bow.planning.tiles import link_benchmark
from bow.planning.tiles.communication import ProcessGroup
from bow.planning.tiles.link_benchmark import DeviceInventory, LinkModels, cache_busy_links, cached_busy_links
from tests.planning.tiles.thread_group import thread_group, together

LINES: LinkModels = {(0, 1): (120_000.0, 0.5)}

HERE = threading.local()
"""`number`: of the device that this thread is."""


def asked(inventory: list[Any]) -> list[tuple[LinkModels, float]]:
    """What each device is told, and that both have asked each other equally often."""

    def ask(group: Any) -> tuple[LinkModels, float]:
        HERE.number = group.rank
        return cached_busy_links(group, DeviceInventory.of(group))

    before = [each.asked for each in inventory]
    found = together(ask, inventory)
    assert len({each.asked - number for each, number in zip(inventory, before, strict=True)}) == 1
    return found


@pytest.fixture
def pair() -> list[Any]:
    return thread_group(2)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, int]]:
    """By measurement: who has measured, and in how many turns. Each device has a folder of its own, as its number."""
    turns_of: list[tuple[int, int]] = []

    def measure(group: ProcessGroup, *, shapes: Any, turns: int) -> tuple[LinkModels, float]:
        turns_of.append((group.rank, turns))
        group.all_gather(None)  # the threads have one source of random numbers: none draws before both know its state
        torch.rand(1)
        return LINES, 40.0

    monkeypatch.setattr(link_benchmark, "cache_folder", lambda: tmp_path / str(HERE.number))
    monkeypatch.setattr(link_benchmark, "measure_busy_links", measure)
    return turns_of


def file_of(folder: Path, number: int = 0) -> Path:
    (file,) = (folder / str(number) / "links").iterdir()
    return file


def rewrite(file: Path, text: str) -> None:
    """Put another value, which may be no JSON, into a file."""
    content = json.loads(file.read_text())
    file.write_text(f'{{"version": {content["version"]}, "key": {json.dumps(content["key"])}, "value": {text}}}')


def test_what_is_kept_is_not_measured_again(pair: list[Any], measured: list[Any]) -> None:
    before = torch.get_rng_state()
    assert asked(pair) == asked(pair) == [(LINES, 40.0)] * 2
    assert sorted(measured) == [(0, link_benchmark.FEW_TURNS), (1, link_benchmark.FEW_TURNS)]
    assert torch.equal(torch.get_rng_state(), before)  # a training draws the same whether it was kept or not


def test_the_first_device_keeps_it_for_all(pair: list[Any], measured: list[Any], tmp_path: Path) -> None:
    asked(pair)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    rewrite(file_of(tmp_path), kept("[0, 1, 3, 1]"))
    assert asked(pair) == [({(0, 1): (3.0, 1.0)}, 0.0)] * 2
    assert len(measured) == 2
    (tmp_path / "1").mkdir()
    file_of(tmp_path).parent.rename(tmp_path / "1" / "links")
    assert asked(pair) == [(LINES, 40.0)] * 2  # what another one has kept counts for nothing
    assert len(measured) == 4


def test_one_device_alone_has_nothing_to_measure_or_to_keep(measured: list[Any], tmp_path: Path) -> None:
    (alone,) = thread_group(1)
    assert asked([alone]) == [({}, 0.0)]
    HERE.number = 0
    cache_busy_links(alone, {}, 0.0)
    assert not measured
    assert not list(tmp_path.iterdir())


def test_devices_are_asked_once_what_and_where_they_are(pair: list[Any], measured: list[Any]) -> None:
    asked(pair)
    before = pair[0].asked
    asked(pair)
    assert pair[0].asked == before + 2  # the other time for what is kept


def test_what_a_plan_has_measured_takes_the_place_of_what_was_kept(pair: list[Any], measured: list[Any]) -> None:
    def keep(group: Any) -> None:
        HERE.number = group.rank
        cache_busy_links(group, {(0, 1): (7.0, 0.25)}, 0.0)

    asked(pair)
    together(keep, pair)
    assert asked(pair) == [({(0, 1): (7.0, 0.25)}, 0.0)] * 2
    assert len(measured) == 2


def kept(*pairs: str, sum_us: str = "0") -> str:
    """The text of a file with pairs of devices, written out, since JSON from Python has names for what is infinite."""
    return f'{{"pairs": [{", ".join(pairs)}], "sum_us": {sum_us}}}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[" * 100_000, '{"pairs": 3}', kept("[0, 1]"), kept("3"), kept("[[0], 1, 1, 1]")),
        *(kept(), kept("[0, 7, 1, 1]"), kept("[1, 0, 1, 1]"), kept("[0, 1, 1, 1]", "[0, 2, 1, 1]")),
        *(kept("[0, 1, 1, 1]", "[0, 1, 1, 1]"), kept("[0, Infinity, 1, 1]"), kept("[0, NaN, 1, 1]")),
        *(kept("[0, 1, 1, 0]"), kept("[0, 1, 1, -1]"), kept("[0, 1, 1, NaN]"), kept("[0, 1, 1, Infinity]")),
        *(kept("[0, 1, 1, 1e-320]"), kept("[0, 1, 1, 1e7]"), kept(f"[0, 1, 1, 1{'0' * 400}]")),
        *(kept("[0, 1, -1, 1]"), kept("[0, 1, NaN, 1]"), kept("[0, 1, Infinity, 1]"), kept('[0, 1, "soon", 1]')),
        *(kept("[0, 1, 1, 1]", sum_us=sum_us) for sum_us in ("-1", "NaN", "Infinity", "null", f"1{'0' * 400}")),
    ],
    ids=lambda text: text[:48],
)
def test_a_damaged_file_is_measured_again(pair: list[Any], measured: list[Any], tmp_path: Path, text: str) -> None:
    asked(pair)
    rewrite(file_of(tmp_path), text)
    assert asked(pair) == [(LINES, 40.0)] * 2
    assert len(measured) == 4


def test_what_is_no_text_is_measured_again(pair: list[Any], measured: list[Any], tmp_path: Path) -> None:
    asked(pair)
    file_of(tmp_path).write_bytes(b"\xff\xfe\x00")
    assert asked(pair) == [(LINES, 40.0)] * 2


def test_without_a_place_to_keep_it_it_is_measured_each_time(
    pair: list[Any], measured: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    def nowhere() -> Path:
        raise RuntimeUnavailableError("this user has no home folder")

    for folder in (nowhere, lambda: tmp_path / "file"):
        monkeypatch.setattr(link_benchmark, "cache_folder", folder)
        assert asked(pair) == [(LINES, 40.0)] * 2
    assert len(measured) == 4


def test_other_gpus_have_other_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    (alone,) = thread_group(1)
    alone.device = torch.device("cuda", 0)
    for uuid in ("0a", "1b", "0a"):
        monkeypatch.setattr(link_benchmark, "gpu_uuid", lambda device, uuid=uuid: uuid)
        inventory = DeviceInventory.of(alone)
        assert inventory.gpus == (uuid,)
        files.append(astuple(inventory))
    assert files[0] == files[2] != files[1]
