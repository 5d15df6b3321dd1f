import json
import shutil
from pathlib import Path

import pytest

from bow.bench.engines import Settings
from bow.bench.group import geometric_mean
from bow.bench.readme import BEGIN, END, replaced, results_block
from bow.bench.results import Result
from bow.errors import SettingError
from tests.bench.groups import ENVIRONMENT, GROUP

ROOT = Path(__file__).parents[2]


def test_the_readme_states_what_the_committed_results_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == replaced(text, results_block(ROOT / "benchmarks" / "results"))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with results of `bow bench engines` that were made up, beside the committed ones of the others."""
    for name in ("accuracy", "sweep"):
        shutil.copy(ROOT / "benchmarks" / "results" / f"{name}.json", tmp_path)
    findings = {"contests": [GROUP.contest_dict()], "geometric_mean": geometric_mean([GROUP])}
    result = Result("engines", "bow bench engines", ENVIRONMENT, Settings(), 60.0, findings)
    (tmp_path / "engines.json").write_text(json.dumps(result.as_dict()))
    return tmp_path


@pytest.mark.parametrize(
    "part",
    [
        "| MLP | 4 | compiled_step, 2 threads | 200 | fused, 8 learners | 900 | 4.00 (2.50 to 4.50) |",
        "`bow bench engines`, a processor with 2 cores, torch 2.13.0",
        "with 1 and 2 threads",
        "7 interleaved repeats",
        "Geometric mean of the medians: 4.00",
    ],
)
def test_the_readme_states_best_against_best(results: Path, part: str) -> None:
    assert part in results_block(results)


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nb\n", "new") == f"a\n{BEGIN}\n\nnew\n{END}\nb\n"


def test_a_readme_without_marks_is_refused() -> None:
    with pytest.raises(SettingError, match="no place for results"):
        replaced("nothing", "new")
