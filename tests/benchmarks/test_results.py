"""Files and tables that benchmarks leave behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks.environment import Environment
from benchmarks.results import Result, Table, prepare_output, write_json
from bow.errors import SettingError

ENVIRONMENT = Environment("a processor", 2, 7.5, (), "Linux x86_64", "3.11.9", "2.13.0", "0.1.0")


@dataclass(frozen=True)
class Settings:
    out: Path = Path("results")
    seeds: int = 3


def test_a_result_says_how_to_make_it_again_and_where_it_was_made() -> None:
    values = Result("sweep", "python -m benchmarks sweep", ENVIRONMENT, Settings(), 12.345, {"best": 7}).as_dict()
    assert values["command"] == "python -m benchmarks sweep"
    assert values["environment"]["processor"] == "a processor"
    assert values["environment"]["torch"] == "2.13.0"
    assert values["settings"] == {"seeds": 3}
    assert values["seconds"] == 12.3
    assert values["best"] == 7
    assert datetime.fromisoformat(values["date"]).tzinfo is not None


def test_json_reads_back_as_it_was(tmp_path: Path) -> None:
    long = {"name": "x" * 60, "numbers": [1.5] * 5, "none": None}
    values = {"entries": [long, long], "empty": {}, "deep": {"list": list(range(90))}}
    write_json(tmp_path / "result.json", values)
    text = (tmp_path / "result.json").read_text()
    assert json.loads(text) == values
    assert '"numbers": [1.5, 1.5, 1.5, 1.5, 1.5]' in text
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_flat_entry_of_a_list_is_one_line_and_a_nested_one_is_several(tmp_path: Path) -> None:
    flat, nested = {"a": list(range(90))}, {"a": [{"b": 1}] * 30}
    write_json(tmp_path / "result.json", {"entries": [flat, nested]})
    lines = (tmp_path / "result.json").read_text().splitlines()
    assert json.dumps(flat) + "," in [line.strip() for line in lines]
    assert max(map(len, lines)) < 500


def test_what_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "result.json", {"a": float("nan")})
    assert json.loads((tmp_path / "result.json").read_text()) == {"a": 1}


def test_a_table_in_markdown() -> None:
    table = Table(["model", "speed"], [("LeNet", "1"), ("MLP", "2")], left=["model"])
    assert table.markdown() == "| model | speed |\n| :-- | --: |\n| LeNet | 1 |\n| MLP | 2 |\n"


def test_a_table_on_the_terminal_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    Table(["model", *map(str, range(9))], [["LeNet", *["1,234 (1)"] * 9]]).show("the title")
    text = capsys.readouterr().out
    assert "the title" in text
    assert text.count("1,234 (1)") == 9


def test_a_file_in_the_way_of_the_folder_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(SettingError, match=r"results cannot be made .*; give another folder"):
        prepare_output(tmp_path / "taken" / "results")
