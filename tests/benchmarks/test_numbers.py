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

MEASURED = re.compile(r"(?<![\w.])\d[\d,.]*(?: to \d[\d.]*)? ?(?:times|ms|us|s|samples/s|seconds|minutes)\b")
SOURCE = re.compile(r"benchmarks/results|python -m (?:benchmarks|tests)|<!-- (?:manycore|placement|planner|results): ")
COMMAND = re.compile(r"`python -m benchmarks (\w+)((?: \w+=[^` ]+)*)`")

# Sections whose numbers have no source yet, or are settings of bow. Take the name out when there is one.
WITHOUT_SOURCE = {
    ("docker.md", "Stopping, going on, health"),
}

# Results from before commits were written down, or from a tree with changes. Put the name out when it is made again.
WITHOUT_COMMIT = {"accuracy", "costs", "micro", "schedule", "sweep", "tuner"}


def sections() -> Iterator[tuple[str, str, str]]:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for section in re.split(r"(?m)^(?=#+ )", text):
            yield page.name, section.partition("\n")[0].lstrip("# "), section


def prose(section: str) -> str:
    """Paragraphs, without code and tables."""
    parts = section.split("\n\n")
    return "\n\n".join(part for part in parts if not part.startswith("    ") and not part.lstrip().startswith("|"))


def test_a_section_with_measured_numbers_names_their_source() -> None:
    found = {
        (page, title)
        for page, title, section in sections()
        if MEASURED.search(prose(section)) and not SOURCE.search(section)
    }
    assert found <= WITHOUT_SOURCE, sorted(found - WITHOUT_SOURCE)
    assert found >= WITHOUT_SOURCE, f"have a source now: {sorted(WITHOUT_SOURCE - found)}"


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
        is_named = re.fullmatch(r"[0-9a-f]{7,}", each["environment"].get("commit") or "") is not None
        assert is_named is (path.stem not in WITHOUT_COMMIT)


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
