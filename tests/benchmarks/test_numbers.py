"""Every number that the README and the documentation state has a committed result and a command that makes it again."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ALL, EXPERIMENTS, RENDER, harness, main
from bow.errors import SettingError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

UNITS = r"(?:times|ms|us|ns|s|samples/s|seconds?|minutes?|hours?|x|percent)\b|%"
MEASURED = re.compile(rf"(?<![\w.=])\d[\d,.]*(?: to \d[\d,.]*)? ?(?:{UNITS})")
# A link to a result or to the page of all results, a command, or a block that a command has written.
SOURCE = re.compile(
    r"benchmarks/results|\(docs/results\.md|python -m (?:benchmarks|tests)"
    r"|<!-- (?:budgets|manycore|placement|planner|results): "
)
COMMAND = re.compile(r"`python -m benchmarks (\w+)((?: \w+=[^` ]+)*)`")

# Numbers that nobody measured: settings and limits of bow, and what somebody else has measured or asks for.
NOT_MEASURED = {
    "in 1 % of the time",  # live checks
    "0.1 s in all",
    "spin for 0.2 ms",
    "by more than 2 %",  # what a schedule has to gain
    "a training of 40 s with the default share",
    "and in at most 1 %",  # checkpoints
    "every 30 minutes",  # the image's health check
    "less than 40 % of its time",  # what a way to compute a convolution has to gain
    "the aim: at most 5 % slower",
    "over the first 5 % of the rounds",  # warmup=0.05
}


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs without code; a table belongs to what stands before it, and so does a list."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    before = ""
    for part in re.split(r"\n\s*\n", text):
        if part.lstrip().startswith(("|", "* ", "- ", "1. ")) and not before.startswith("#"):
            before += f"\n\n{part}"
            continue
        yield before
        before = part
    yield before


def numbers_without_source(page: str, text: str) -> list[str]:
    return [
        f"{page}: {match[0]!r} in {line.strip()[:160]!r}"
        for paragraph in paragraphs(text)
        if not SOURCE.search(paragraph)
        for line in paragraph.splitlines()
        for match in MEASURED.finditer(line)
        if not any(line[max(0, match.start() - 60) : match.end() + 60].find(each) >= 0 for each in NOT_MEASURED)
    ]


def test_a_measured_number_names_its_source() -> None:
    found = [each for page in PAGES for each in numbers_without_source(page.name, page.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_what_is_not_measured_is_there() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert not [each for each in NOT_MEASURED if each not in text]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It takes 30 s of one core, which is 1.5 times as much and 4 %.", 3),
        ("It takes 30 s ([result](../benchmarks/results/start.md)).", 0),
        ("# Title\n\nFirst ([result](../benchmarks/results/start.md)).\n\nThen 30 s.", 1),
        ("Measured by `python -m benchmarks start`:\n\n| a |\n| -- |\n| 30 s |", 0),
        ("Nothing.\n\n| a |\n| -- |\n| 30 s |", 1),
        ("2 x 32 cores and 10 s", 2),
        ("```\n30 s\n```", 0),
    ],
)
def test_numbers_are_found_in_prose_and_tables(text: str, count: int) -> None:
    assert len(numbers_without_source("page.md", text)) == count


def made(path: Path) -> list[dict[str, Any]]:
    """How a result was made: by one command, or by one for each of its parts."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return list(values["made"].values()) if "made" in values else [values]


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: path.stem)
def test_a_result_names_its_command_date_machine_and_commit(path: Path) -> None:
    for each in made(path):
        assert each["command"].startswith("python -m ")
        assert re.match(r"\d{4}-\d\d-\d\d", each["date"])
        assert {"processor", "cores", "torch", "bow"} <= set(each["environment"])
        assert re.fullmatch(r"[0-9a-f]{7,}", each["environment"]["commit"])  # of a tree without changes


def test_links_to_results_lead_to_files() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]*benchmarks/results/[^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).is_file(), f"{page.name}: {link}"


def test_commands_of_the_documentation_are_understood() -> None:
    commands = [match for page in PAGES for match in COMMAND.findall(page.read_text(encoding="utf-8"))]
    assert len(commands) > 10
    for name, words in commands:
        assert name in EXPERIMENTS or name == ALL
        if name != ALL:
            config = importlib.import_module(f"benchmarks.{name}").Config
            harness.parse(config, [word for word in words.split() if word != RENDER])


def test_everything_is_announced_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ALL, ["--dry-run"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in EXPERIMENTS)
    assert re.search(r"\d+ benchmarks, about [\d.]+ hours", told)
    with pytest.raises(SettingError, match="takes no settings"):
        main(ALL, ["quick=true"])
