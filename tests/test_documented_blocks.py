"""The self-contained code blocks of docs/training.md run without changes."""

import re
from pathlib import Path

import pytest

from benchmarks.models import let_torchvision_be_imported

TEXT = (Path(__file__).parents[1] / "docs/training.md").read_text()
PARTS = re.findall(r"^##+ ([^\n]+)\n((?:(?!^##).*\n)*)", TEXT, re.MULTILINE)
BLOCKS = {
    title: block
    for title, part in PARTS
    for block in re.findall(r"^```python\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    if "import bow\n" in block
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", BLOCKS)
def test_a_block_runs(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_torchvision_be_imported()  # others import it if it is installed
    for package in re.findall(r"^(?:import|from) (\w+)", BLOCKS[title], re.MULTILINE):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[title], f"docs/training.md: {title}", "exec"), {"__name__": "__main__"})


def test_there_are_blocks() -> None:
    assert len(BLOCKS) == 8
