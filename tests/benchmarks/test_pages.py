"""The pages of the committed results can be made from their JSON."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import main
from benchmarks.figures import markdown
from benchmarks.figures.comparison import answer
from benchmarks.harness import render
from bow.errors import SettingError

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
OF_PLACEMENT = ("placement_real", "placement_small", "placement_ablation")
PAGES = {path.stem: path.stem for path in RESULTS.glob("*.json")} | {
    name: "placement" for name in OF_PLACEMENT if (RESULTS / f"{name}.json").is_file()
}
OF_OTHERS = ("budgets",)  # pages with numbers of other results: they change with those
PAGES |= {name: "engines" for name in PAGES if name.startswith("engines_")}


def rendered(name: str) -> str:
    """The page of a result, made of its JSON."""
    values = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    module = importlib.import_module(f"benchmarks.{PAGES[name]}")
    own = module.page(values) if hasattr(module, "page") else {}
    return render(name, {**values, **own})


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_made_of_the_committed_numbers(name: str) -> None:
    page = rendered(name)
    committed = RESULTS / f"{name}.md"
    if committed.is_file():
        assert cells(page) == cells(committed.read_text(encoding="utf-8"))
        assert headings(page) == headings(committed.read_text(encoding="utf-8"))
        assert name not in OF_OTHERS or page == committed.read_text(encoding="utf-8")


def test_the_page_of_the_figures_is_made_of_their_numbers() -> None:
    committed = (RESULTS / "figures" / "figures.md").read_text(encoding="utf-8")
    assert markdown(RESULTS / "figures") == committed


def test_a_tuned_ratio_takes_the_fastest_learning_rate_of_each_side() -> None:
    def trained(learners: int, lr: float, *times: float | None) -> list[dict[str, object]]:
        return [{"learners": learners, "lr": lr, "time_s": time_s} for time_s in times]

    values = {"rows": trained(1, 0.1, 4.0, 4.0) + trained(3, 0.1, 8.0, 6.0)}
    values["tuned"] = trained(1, 0.2, 2.0, 3.0) + trained(3, 0.2, 1.0, None) + trained(3, 0.4, 5.0, 5.0)
    statement = {"of": {"learners": 3}, "over": {"learners": 1}, "measure": "time_s"}
    assert answer(statement, values) == "1.75 (7 s over 4 s)"
    assert answer({**statement, "tuned": True}, values) == "2.00 (5 s over 2.5 s)"


@pytest.mark.parametrize("name", ["planner", "manycore", "memory", "figures"])
def test_a_page_is_made_again_by_a_command(name: str, tmp_path: Path) -> None:
    folder = RESULTS / "figures" if name == "figures" else RESULTS
    for path in folder.glob("*.json"):
        if path.stem == name or "5.8" in path.stem:
            shutil.copy(path, tmp_path)
    more = [f"docs={tmp_path}"] if name in ("planner", "manycore") else []
    assert main(name, ["render", f"out={tmp_path}", *more]) == 0
    page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    committed = (folder / f"{name}.md").read_text(encoding="utf-8")
    assert page == committed if name != "figures" else "Figure 5.8" in page


def test_without_numbers_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no engines\.json"):
        main("engines", ["render", f"out={tmp_path}"])


def cells(text: str) -> int:
    """How many cells of tables there are."""
    return sum(line.count("|") for line in text.splitlines() if line.startswith("|"))


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ .*$", text, re.MULTILINE)
