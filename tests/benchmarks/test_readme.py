import json
from pathlib import Path

import pytest

from benchmarks.readme import BEGIN, END, _over, replaced, results_block, summary_block
from bow.errors import SettingError

ROOT = Path(__file__).parents[2]


def test_the_readme_states_what_the_committed_results_say() -> None:
    for file, block in (("docs/results.md", results_block), ("README.md", summary_block)):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert text == replaced(text, block(ROOT / "benchmarks" / "results"))


def test_a_race_that_bow_did_not_finish_names_no_fastest_peer(tmp_path: Path) -> None:
    for name in ("engines", "peers"):
        values = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        if name == "peers":
            values["verdict"] |= {"best_peer": None, "ratio": None}
        (tmp_path / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")
    assert "fastest peer" not in summary_block(tmp_path)


def test_a_strategy_is_not_compared_with_one_that_does_not_fit() -> None:
    strategies = {"data": {"step_ms": 3.0, "refused": "memory"}, "expert": {"step_ms": 8.0}, "found": {"step_ms": 2.0}}
    assert _over(strategies) == "4.00"
    assert _over({**strategies, "expert": {"refused": "memory"}}) == "none"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nb\n", "new") == f"a\n{BEGIN}\n\nnew\n{END}\nb\n"


def test_a_readme_without_marks_is_refused() -> None:
    with pytest.raises(SettingError, match="no place for results"):
        replaced("nothing", "new")
