"""What messages take in use: kept, and measured where it is not kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bow.errors import RuntimeUnavailableError
from bow.tiles import kept_lines
from bow.tiles.kept_lines import keep_lines, lines_here
from bow.tiles.links import Lines
from bow.tiles.team import Team

LINES: Lines = {(0, 1): (120_000.0, 0.5)}


class Pair:
    """The first of two devices, of which the other says the same."""

    device, number, size = torch.device("cpu"), 0, 2

    def everyone(self, value: Any) -> list[Any]:
        return [value, value]


TEAM: Any = Pair()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """In how many turns something was measured, by call."""
    turns_of: list[int] = []

    def measure(team: Team, *, shapes: Any, turns: int) -> tuple[Lines, float]:
        turns_of.append(turns)
        torch.rand(1)
        return LINES, 40.0

    monkeypatch.setattr(kept_lines, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(kept_lines, "lines_in_use", measure)
    return turns_of


def test_what_is_kept_is_not_measured_again(measured: list[int]) -> None:
    before = torch.get_rng_state()
    assert lines_here(TEAM) == lines_here(TEAM) == (LINES, 40.0)
    assert measured == [kept_lines.TURNS]
    assert torch.equal(torch.get_rng_state(), before)  # a training draws the same whether it was kept or not


def test_what_a_plan_has_measured_takes_the_place_of_what_was_kept(measured: list[int]) -> None:
    lines_here(TEAM)
    keep_lines(TEAM, {(0, 1): (7.0, 0.25)}, 0.0)
    assert lines_here(TEAM) == ({(0, 1): (7.0, 0.25)}, 0.0)
    assert len(measured) == 1


def kept(*pairs: str, sum_us: str = "0") -> str:
    """The text of a file with pairs of devices, written out, since JSON from Python has names for what is infinite."""
    return f'{{"pairs": [{", ".join(pairs)}], "sum_us": {sum_us}}}'


def test_a_file_as_it_should_be_is_taken(measured: list[int], tmp_path: Path) -> None:
    lines_here(TEAM)
    (file,) = (tmp_path / "cache" / "links").iterdir()
    file.write_text(kept("[0, 1, 0, 1]"))
    assert lines_here(TEAM) == ({(0, 1): (0.0, 1.0)}, 0.0)
    assert len(measured) == 1


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
def test_a_damaged_file_is_measured_again(measured: list[int], tmp_path: Path, text: str) -> None:
    lines_here(TEAM)
    (file,) = (tmp_path / "cache" / "links").iterdir()
    file.write_text(text)
    assert lines_here(TEAM) == (LINES, 40.0)
    assert len(measured) == 2


def test_without_a_place_to_keep_it_it_is_measured_each_time(
    measured: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    def nowhere() -> Path:
        raise RuntimeUnavailableError("this user has no home folder")

    for folder in (nowhere, lambda: tmp_path / "file"):
        monkeypatch.setattr(kept_lines, "cache_folder", folder)
        assert lines_here(TEAM) == (LINES, 40.0)
    assert len(measured) == 2


def test_other_gpus_have_other_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    for uuid in ("0a", "1b", "0a"):
        monkeypatch.setattr(kept_lines, "gpu_uuid", lambda device, uuid=uuid: uuid)
        team: Any = SimpleNamespace(device=torch.device("cuda", 0), everyone=TEAM.everyone)
        files.append(kept_lines._file(team))
    assert files[0] == files[2] != files[1]
