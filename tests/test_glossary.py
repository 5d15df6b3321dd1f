import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_glossary_names_classes_that_there_are() -> None:
    rows = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.rsplit("|", 2)[1])}
    trees = (ast.parse(path.read_text()) for path in (ROOT / "bow").rglob("*.py"))
    classes = {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    assert len(named) > 30
    assert named <= classes
