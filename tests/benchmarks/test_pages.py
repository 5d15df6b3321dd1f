"""The pages of the committed results can be made from their JSON."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from benchmarks.harness import render

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PAGES = {
    "accuracy": "accuracy",
    "allreduce": "allreduce",
    "costs": "costs",
    "engines": "engines",
    "micro": "micro",
    "placement": "placement",
    "placement_real": "",
    "placement_small": "",
    "predicted": "predicted",
    "schedule": "schedule",
    "sweep": "sweep",
    "tiles": "tiles",
    "tuner": "tuner",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_made_of_the_committed_numbers(name: str) -> None:
    values = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    module = importlib.import_module(f"benchmarks.{PAGES[name]}") if PAGES[name] else None
    own = getattr(module, "page", getattr(module, "context", None))
    page = render(name, {**values, **(own(values) if own else {})})
    committed = RESULTS / f"{name}.md"
    if committed.is_file():
        assert cells(page) == cells(committed.read_text(encoding="utf-8"))
        assert headings(page) == headings(committed.read_text(encoding="utf-8"))


def cells(text: str) -> int:
    """How many cells of tables there are."""
    return sum(line.count("|") for line in text.splitlines() if line.startswith("|"))


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ .*$", text, re.MULTILINE)
