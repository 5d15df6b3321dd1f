import json
import shutil
from pathlib import Path

import pytest

from bow.bench.engines import Settings
from bow.bench.group import Group, geometric_mean
from bow.bench.readme import BEGIN, END, replaced, results_block
from bow.bench.results import Result
from bow.errors import SettingError
from tests.bench.groups import BOW_ALONE, ENVIRONMENT, GROUP, NOBODY, PYTORCH_ALONE

ROOT = Path(__file__).parents[2]


def test_the_readme_states_what_the_committed_results_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == replaced(text, results_block(ROOT / "benchmarks" / "results"))


def write_results(folder: Path, groups: list[Group]) -> None:
    """Results of `bow bench engines` that were made up, beside the committed ones of the others."""
    for name in ("tuner", "accuracy", "sweep"):
        shutil.copy(ROOT / "benchmarks" / "results" / f"{name}.json", folder)
    findings = {"contests": [group.contest_dict() for group in groups], "geometric_mean": geometric_mean(groups)}
    result = Result("engines", "bow bench engines", ENVIRONMENT, Settings(), 60.0, findings)
    (folder / "engines.json").write_text(json.dumps(result.as_dict()))


@pytest.mark.parametrize(
    "part",
    [
        "| MLP | 4 | compiled_step, 2 threads | 200 | fused, 8 learners | 500 | 2.50 (2.00 to 3.00) |",
        "`bow bench engines`, a processor with 2 cores, torch 2.13.0",
        "with 1 and 2 threads",
        "7 interleaved repeats of the two alone",
        "Geometric mean of the medians: 2.50",
    ],
)
def test_the_readme_states_best_against_best(tmp_path: Path, part: str) -> None:
    write_results(tmp_path, [GROUP])
    assert part in results_block(tmp_path)


def test_the_readme_leaves_open_what_did_not_run(tmp_path: Path) -> None:
    write_results(tmp_path, [PYTORCH_ALONE, BOW_ALONE, NOBODY])
    block = results_block(tmp_path)
    assert "| LeNet | 16 | pytorch | 100 |  |  |  |" in block
    assert "| LeNet | 16 |  |  | eager, 8 learners | 110 |  |" in block
    assert "| LeNet | 16 |  |  |  |  |  |" in block
    assert "Geometric mean" not in block


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nb\n", "new") == f"a\n{BEGIN}\n\nnew\n{END}\nb\n"


def test_a_readme_without_marks_is_refused() -> None:
    with pytest.raises(SettingError, match="no place for results"):
        replaced("nothing", "new")
