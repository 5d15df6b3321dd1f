"""docs/papers.md: nothing is left out, files exist, commands are understood, and numbers are those of the results."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.figures import markdown
from bow.cli import planning, planning_settings, scheduling
from bow.cli.checking import read_words
from bow.cli.composition import compose
from bow.models import NETWORKS
from bow.planning.problem.topology_files import load_topology
from bow.planning.tiles.machine import MACHINE
from tests.benchmarks.test_numbers import made
from tests.benchmarks.test_pages import RESULTS, rendered

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"

LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]+)(?:#[^)]*)?\)")
CODE = re.compile(r"`([^`]+)`")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]\d+)?")
NAMED = re.compile(r"(Algorithm|Figure|Table)s? ([\dIVX.]+[a-d]?(?:, [\dIVX.]+[a-d]?)*)")

CELLS = ("what", "code", "command", "paper", "here", "why")

# What the papers call so; drawings of one figure by their letters.
CONTENTS = {
    "TensorBow, CROSSBOW": {
        "Algorithm": "1 2",
        "Figure": "1.1 2.1 2.2 2.3 2.4 2.5 2.6 2.7 3.1 3.2 3.3 3.4 3.5 4.1 4.2 4.3 5.1 5.2 5.3 5.4 5.5 5.6 5.7 5.8 5.9 "
        "5.10 5.11 5.12 5.13",
        "Table": "2.1 3.1 5.1",
    },
    "Liu et al.": {"Figure": "1 2 3a 3b 3c 3d 4", "Table": "I II III IV V VI"},
    "Graphi": {"Algorithm": "1 2", "Figure": "1 2 3 4 5 6", "Table": "1 2"},
    "FlexFlow": {"Algorithm": "1 2", "Figure": "1 2 3 4 5 6 7 8a 8b 8c 9 10a 10b 11 12 13 14", "Table": "1 2 3 4"},
    "Mirhoseini et al.": {"Figure": "1 2 3 4 5 6 7 8 9", "Table": "1 2"},
}


def sections() -> Iterator[tuple[str, str]]:
    """By paper: its part of the page."""
    _, *parts = re.split(r"(?m)^## ", PAGE.read_text(encoding="utf-8"))
    return ((part.partition("\n")[0].partition(":")[0], part) for part in parts)


def rows(section: str) -> list[dict[str, str]]:
    """The rows of its table, by what heads a column."""
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    split = [[cell.strip() for cell in re.split(r"(?<= )\|(?= |$)", line[1:])][:-1] for line in lines]
    return [dict(zip(CELLS, cells, strict=True)) for cells in split]


def all_rows() -> list[dict[str, str]]:
    return [row for _, section in sections() for row in rows(section)]


def test_every_algorithm_figure_and_table_has_one_row() -> None:
    assert [name for name, _ in sections()] == list(CONTENTS)
    for name, section in sections():
        found = [
            f"{kind} {number}"
            for row in rows(section)
            for kind, numbers in NAMED.findall(row["what"])
            for number in numbers.split(", ")
        ]
        wanted = [f"{kind} {number}" for kind, numbers in CONTENTS[name].items() for number in numbers.split()]
        assert sorted(found) == sorted(wanted), name


def test_files_exist_and_cells_say_something() -> None:
    for row in all_rows():
        assert all(row[cell] for cell in CELLS[:-1]), row
        assert LINK.search(row["code"]) or row["code"] in ("none", "not built"), row
        assert CODE.search(row["command"]) or row["command"] == "none", row
    for _, place in LINK.findall(PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / place).exists(), place


COMMANDS = sorted({each for row in all_rows() for each in CODE.findall(row["command"])})


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "python":
        assert words[0] == "-m"
        assert importlib.util.find_spec(words[1]) is not None
        if words[1] == "benchmarks":
            harness.parse(importlib.import_module(f"benchmarks.{words[2]}").Config, words[3:])
        return
    assert program == "bow"
    action, *settings = words
    if action == "train" or words[:2] == ["plan", "train"]:
        compose([word for word in settings if "=" in word])
    elif action == "plan":
        _plan(settings)
    elif action == "schedule":
        assert settings[0] in scheduling.ACTIONS
        own, others = read_words(settings[1:], scheduling.READERS)
        _subject(own.get("network", ""), own.get("size", ""), others)
    else:
        assert command == "bow doctor"


@pytest.mark.nightly
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_in_small_form(command: str, tmp_path: Path) -> None:
    program, *words = shlex.split(command)
    if "plan/partition.json" in words:
        _ran(["-m", "bow", "plan", "recipe=lenet", "budget_s=0.5"], tmp_path)
    _ran(["-m", "bow", *_small(words)] if program == "bow" else _small(words), tmp_path)


def _small(words: list[str]) -> list[str]:
    """A command with settings that make it short."""
    if words[0] == "-m":
        if words[1] == "benchmarks":
            return [*words, "quick=true", "out=results"]
        return [*words, "100"]  # proposals
    if words[0] == "train" or words[:2] == ["plan", "train"]:
        return [*(word for word in words if not word.startswith("epochs=")), "epochs=1"]
    sized = [word for word in words if not word.startswith("size=")]
    budget = "budget_s=20" if any(word.startswith("workers=") for word in words) else "budget_s=0.5"  # they start first
    own = ["size=tiny"] if any(word.startswith("network=") for word in words) else []
    return [
        *sized,
        *own,
        *([budget] if words[0] == "plan" and words[1:2] not in (["show"], ["explain"]) else []),
    ]


def _ran(words: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1])}
    ran = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode in (0, 1), ran.stderr  # 1: an aim is missed, as small forms may
    assert "Traceback" not in ran.stderr, ran.stderr


def _plan(words: list[str]) -> None:
    action, file, rest = planning._action(words)
    settings = planning_settings.read(rest)
    planning_settings.check_used(settings.method, settings.search, settings.workers)
    if settings.topology not in ("", MACHINE):
        load_topology(settings.topology)
    assert bool(file) == (action in ("show", "explain"))
    _subject(settings.network, settings.size, list(settings.others))


def _subject(network: str, size: str, others: list[str]) -> None:
    if network:
        NETWORKS[network].size(size or "tiny")
        assert others == []
    else:
        compose(others)


def test_numbers_and_dates_are_those_of_the_results() -> None:
    for row in all_rows():
        places = [(date, (PAGE.parent / place).resolve()) for date, place in LINK.findall(row["here"])]
        numbers = NUMBER.findall(NAMED.sub("", CODE.sub("", LINK.sub("", row["here"]))))
        assert bool(numbers) <= bool(places), f"no source: {row}"
        known = {number for _, place in places for number in NUMBER.findall(_text(place))}
        assert set(numbers) <= known, f"{sorted(set(numbers) - known)} are on none of the pages: {row}"
        for date, place in places:
            assert DATE.fullmatch(date)
            assert date in {each["date"][:10] for path in _results(place) for each in made(path)}, row


@functools.cache
def _text(place: Path) -> str:
    """A page of results, made of the committed numbers."""
    return markdown(place.parent) if place.parent != RESULTS else rendered(place.stem)


def _results(place: Path) -> list[Path]:
    return [place.with_suffix(".json")] if place.parent == RESULTS else sorted(place.parent.glob("*.json"))
