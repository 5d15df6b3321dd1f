"""Statistics and tables of `bow bench engines`, on made-up measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bow.bench.engines_report import Group, Lane, markdown, summary, table
from bow.bench.environment import Environment
from bow.bench.measure import Spread

ENVIRONMENT = Environment("a processor", 2, 7.5, (), "Linux x86_64", "3.11.9", "2.13.0", "0.1.0")

GROUP = Group(
    "mlp",
    4,
    (
        Lane("pytorch", 1, None, rates=(100.0, 200.0, 100.0)),
        Lane("pytorch", 2, None, rates=(5.0, 400.0, 5.0)),
        Lane("compiled", 1, None, 9.0, rates=(150.0, 300.0, 150.0)),
        Lane("eager", 1, 1, rates=(90.0, 180.0, 90.0)),
        Lane("eager", 1, 8, rates=(110.0, 220.0, 110.0)),
        Lane("eager", 2, 8, rates=(120.0, 220.0, 120.0)),
        Lane("fused", 1, 1, 20.0, rates=(200.0, 400.0, 210.0)),
        Lane("fused", 1, 8, 25.0, rates=(800.0, 1000.0, 900.0)),
    ),
    notes=("mlp, batch 4, fused with 1 learner on 2 threads: left out, RuntimeError: no compiler",),
    seconds=33.3,
)


def test_the_baseline_is_plain_pytorch_with_the_better_median() -> None:
    assert (GROUP.baseline.implementation, GROUP.baseline.threads) == ("pytorch", 1)


def test_ratios_are_to_the_baseline_of_the_same_repeat() -> None:
    best = GROUP.best_of_bow
    assert best is not None
    assert (best.implementation, best.learners) == ("fused", 8)
    assert GROUP.ratio(best) == Spread(8.0, 5.0, 9.0, 3)


def test_the_better_number_of_threads_speaks_for_a_setting() -> None:
    best = GROUP.best("eager", 8)
    assert best is not None
    assert best.threads == 2
    assert GROUP.best("fused", 4) is None


def test_the_table_has_a_row_for_every_number_of_learners() -> None:
    rows = table([GROUP]).rows
    assert rows[0][:7] == ["MLP", "4", "100 (1)", "150 (1)", "1", "90 (1)", "0.90x (0.90-0.90)"]
    assert rows[0][7:] == ["210 (1)", "2.00x (2.00-2.10)"]
    assert rows[1][4:] == ["8", "120 (2)", "1.20x (1.10-1.20)", "900 (1)", "8.00x (5.00-9.00)"]
    assert len(rows) == 2


def test_the_table_stands_without_bow_and_without_the_compiler() -> None:
    plain = replace(GROUP, lanes=GROUP.lanes[:2])
    assert table([plain]).rows == [["MLP", "4", "100 (1)", "", "", "", "", "", ""]]
    assert summary(plain) == "MLP, batch 4: PyTorch 100 samples/s; took 33 s"


def test_the_summary_names_the_best_setting() -> None:
    assert "bow 8.00x (5.00-9.00) as fast (fused with 8 learners on 1 thread)" in summary(GROUP)


def test_the_json_has_every_contestant_with_its_spread() -> None:
    values = GROUP.as_dict()
    assert len(values["contestants"]) == len(GROUP.lanes)
    assert values["contestants"][-1] == {
        "implementation": "fused",
        "learners": 8,
        "threads": 1,
        "samples_per_s": {"median": 900.0, "low": 800.0, "high": 1000.0, "n": 3},
        "ratio": {"median": 8.0, "low": 5.0, "high": 9.0, "n": 3},
        "first_call_s": 25.0,
    }
    assert values["best_of_bow"] == "fused with 8 learners on 1 thread: 8.00 times plain PyTorch"


@pytest.mark.parametrize("part", ["`bow bench engines`", "a processor, 2 cores", "8.00x (5.00-9.00)", "no compiler"])
def test_the_page_says_how_where_and_what_was_left_out(part: str) -> None:
    values = {
        "command": "bow bench engines",
        "date": "2026-01-02T03:04:05+00:00",
        "seconds": 60.0,
        "settings": {"repeats": 3, "stint_s": 0.2, "threads": [1, 2]},
        "fixed": "all else",
        "ratio": "to plain PyTorch",
    }
    assert part in markdown([GROUP], values, ENVIRONMENT)
