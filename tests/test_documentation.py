"""The documentation site: no broken links, no network access, and every public name is in the reference."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bow

pytest.importorskip("mkdocs", reason="needs the extra docs")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # To look for cycles takes a seventh of the time.
    code = "import gc; gc.disable(); from mkdocs.__main__ import cli; cli()"
    command = [sys.executable, "-c", code, "build", "--quiet", "--strict", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "HIGHLIGHT": "false"}  # of the pages of code, a third of it
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_fetch_nothing(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="?(?:https?:)?//', page.read_text()), page


def test_every_public_name_is_in_the_reference_and_found_by_search(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    assert [name for name in bow.__all__ if f'id="bow.{name}"' not in pages] == []
    found = {each["location"] for each in json.loads((site / "search/search_index.json").read_text())["docs"]}
    assert {"index.html", "api/training.html#bow.train", "first_training.html"} <= found


def test_links_to_code_and_results_lead_to_pages(site: Path) -> None:
    assert "class RoundLoop" in re.sub("<[^>]*>", "", (site / "bow/engines/loop.py.html").read_text())
    assert (site / "benchmarks/results/engines.html").is_file()
