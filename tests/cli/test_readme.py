"""The commands and programs of the README, the page about loops and the notebook: each runs, in a small form."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bow.cli import COMMANDS
from bow.cli.composition import compose, sweep

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(
    r"^    ((?:bow|make|python|pip|source|torchrun|docker) [^#\n]*?(?:\\\n[^#\n]*?)*) *(#.*)?$", re.MULTILINE
)

SMALL = {
    "bow train": "steps=2 run.progress=false",
    "bow schedule": "size=tiny turns=1",
    "bow plan compare": "size=tiny methods=data,expert,search budget_s=1",
    "bow plan train": "steps=2 check=false run.progress=false",
    "bow plan": "budget_s=1",
    "bow report": "",
    "bow doctor": "",
    "bow runs": "",
}


def commands(page: Path) -> list[tuple[str, str]]:
    """The lines of a page for the shell, each with its comment."""
    return COMMAND.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_shell_reads_the_commands_of_a_page(page: Path) -> None:
    for command, _ in commands(page):
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, command + done.stderr


def test_a_shell_reads_the_examples_of_a_usage() -> None:
    usages = [importlib.import_module(f"bow.cli.{module}").USAGE for module in COMMANDS.values()]
    examples = re.findall(r"^  (bow [^\n\[]+?)(?:   .*)?$", "\n".join(usages), re.MULTILINE)
    assert len(examples) > 10
    for example in examples:
        done = subprocess.run(["bash", "-n", "-c", example], capture_output=True, text=True, check=False)
        assert done.returncode == 0, example + done.stderr


def test_settings_of_the_readme_are_those_that_there_are() -> None:
    lines = [
        command for command, _ in commands(PAGES[0]) if command.startswith("bow train") and "--config" not in command
    ]
    trainings = [shlex.split(command)[2:] for command in lines]
    assert len(trainings) > 10
    for words in trainings:
        for job in sweep(words[1:]) if words[:1] == ["-m"] else [words]:
            compose(job)


def test_make_knows_what_the_readme_asks_of_it() -> None:
    targets = [command.split()[1] for command, _ in commands(PAGES[0]) if command.startswith("make ")]
    assert {"train", "test"} <= set(targets)
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.nightly
def test_commands_of_the_readme_run_or_say_what_they_need(tmp_path: Path) -> None:
    run = [(command, comment) for command, comment in commands(PAGES[0]) if command.startswith("bow ")]
    assert len(run) > 15
    for command, comment in run:
        more = next(more for name, more in SMALL.items() if command.startswith(name))
        words = [word for word in shlex.split(command)[1:] if not word.startswith("epochs=")]
        program = [sys.executable, "-m", "bow", *words, *more.split()]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
        needs = re.search(r"apt-get install (\S+)|(DIR): ", comment)  # what a fresh machine lacks, in the same line
        lacks = needs is not None and needs[needs.lastindex or 0] in done.stderr
        assert done.returncode == 0 or lacks, f"{command}\n{done.stderr}"


@pytest.mark.nightly
@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/own_loop.md"], ids=lambda page: page.stem)
def test_programs_of_a_page_run(page: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert programs
    names: dict[str, object] = {}
    for program in programs:
        exec(re.sub(r"epochs=10", "epochs=1", program), names)


@pytest.mark.nightly
def test_the_notebook_runs_and_shows_what_it_showed(tmp_path: Path) -> None:
    notebook = ROOT / "docs/first_training.ipynb"
    words = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--output", tmp_path / "made.ipynb"]
    (tmp_path / notebook.name).write_bytes(notebook.read_bytes())
    subprocess.run([*words, notebook.name], cwd=tmp_path, check=True, capture_output=True)
    then, now = (json.loads(path.read_text())["cells"] for path in (notebook, tmp_path / "made.ipynb"))
    assert [text(cell) for cell in now] == [text(cell) for cell in then]


def text(cell: dict[str, Any]) -> str:
    """What a cell prints, but for its digits: rounding differs between machines."""
    shown = (each.get("text") or each["data"]["text/plain"] for each in cell.get("outputs", []))
    return re.sub(r"\d+", "0", "".join("".join(lines) for lines in shown))
