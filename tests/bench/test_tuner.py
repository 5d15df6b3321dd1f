from __future__ import annotations

import json
from pathlib import Path

import pytest

from bow.bench import main
from bow.bench.environment import inspect_environment
from bow.bench.tuner.comparison import Comparison
from bow.bench.tuner.pairs import PAIRS
from bow.bench.tuner.report import as_dict, line, markdown, reached
from bow.errors import SettingError
from bow.tuner import Setting

ONE, TWO = Setting("graph", 1), Setting("graph", 2)


def comparison(choice: Setting = TWO, best: Setting = TWO, final=None, calibration_s: float = 20.0) -> Comparison:
    rows = [
        {"engine": "graph", "learners": 1, "threads": 1, "status": "measured", "why": "50.0%", "repeats": 5},
        {"engine": "graph", "learners": 2, "threads": 1, "status": "chosen", "why": "the highest", "repeats": 5},
    ]
    rates = {ONE: [100.0, 110.0, 90.0], TWO: [200.0, 190.0, 210.0]}
    failures = {Setting("fused", 2): "it runs as eager"}
    return Comparison("lenet_16", choice, best, calibration_s, 600.0, "took 20.0 s", rows, rates, failures, final)


def test_there_are_eight_pairs_and_in_some_one_learner_is_expected_to_be_best() -> None:
    assert len(PAIRS) == 8
    assert {"logistic_regression_4096", "color_512"} <= set(PAIRS)


@pytest.mark.parametrize(
    ("final", "calibration_s", "expected"),
    [
        (None, 20.0, True),
        (([96.0, 97.0, 98.0], [100.0, 100.0, 100.0]), 20.0, True),
        (([90.0, 94.0, 98.0], [100.0, 100.0, 100.0]), 20.0, False),
        (None, 31.0, False),
    ],
    ids=["the best itself", "close", "too slow", "too expensive"],
)
def test_targets_are_throughput_and_cost(final, calibration_s: float, expected: bool) -> None:
    choice = ONE if final else TWO
    assert reached(comparison(choice, TWO, final, calibration_s)) is expected


def test_the_page_shows_ratio_cost_and_everything_that_was_tried() -> None:
    found = comparison(ONE, TWO, ([96.0, 97.0, 98.0], [100.0, 100.0, 100.0]))
    values = {
        "command": "bow bench tuner",
        "date": "2026-01-02",
        "seconds": 1.0,
        "settings": {"run_s": 600.0, "passes": 3, "repeats": 3, "stint_s": 0.5, "cold": True},
    }
    page = markdown([found, comparison()], values, inspect_environment())
    for part in (
        "0.970 (0.960 to 0.980)",
        "the same",
        "20.0 s",
        "3.3%",
        "2 of 2 pairs",
        "it runs as eager",
        "took 20.0",
    ):
        assert part in page
    assert page.index("| graph, 2 learners | 200") < page.index("| graph, 1 learner | 100")
    assert "0.970" in line(found)
    assert json.loads(json.dumps(as_dict(found)))["ratio"]["median"] == 0.97


def test_it_runs_end_to_end(tmp_path: Path) -> None:
    main("tuner", ["quick=true", "pairs=lenet_4", f"out={tmp_path}"])
    (pair,) = json.loads((tmp_path / "tuner.json").read_text())["pairs"]
    tried = {row["setting"] for row in pair["exhaustive"]}
    assert {pair["choice"], pair["best"], "graph, 1 learner", "graph, 2 learners"} <= tried
    assert pair["calibration_s"] > 0
    assert 0 < pair["share"] < 1
    assert pair["choice"] in (tmp_path / "tuner.md").read_text()


@pytest.mark.parametrize("setting", ["pairs=", "pairs=alexnet", "passes=0"])
def test_wrong_settings_are_refused(setting: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=setting.partition("=")[0]):
        main("tuner", [setting, f"out={tmp_path}"])
