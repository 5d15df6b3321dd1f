import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_glossary_names_classes_that_there_are() -> None:
    rows = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.rsplit("|", 2)[1])}
    texts = (path.read_text() for path in (ROOT / "bow").rglob("*.py"))
    classes = {name for text in texts for name in re.findall(r"^class (\w+)", text, re.M)}
    assert len(named) > 30
    assert named <= classes
