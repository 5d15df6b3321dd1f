"""Tables of `python -m benchmarks engines`, on made-up measurements."""

from __future__ import annotations

import pytest

from benchmarks.bounds import ARITHMETIC, CALLS, MEMORY, Bound, StepCosts, sentences
from benchmarks.engines_report import bounds_table, contest_table, gains_table, markdown, summary, table
from benchmarks.line_up import Lane
from tests.benchmarks.groups import BOW_ALONE, ENVIRONMENT, GROUP, NOBODY, PYTORCH_ALONE

BOUND = Bound(
    GROUP,
    Lane("graph", 1, 2),
    StepCosts(operators=20, flops=30_000_000, bytes_moved=4_000_000, weight_bytes=100),
    1e-3,
    {ARITHMETIC: 6e-4, MEMORY: 2e-4, CALLS: 2e-5},
)


def test_the_first_table_is_best_against_best() -> None:
    assert contest_table([GROUP]).rows == [
        ["MLP", "4", "compiled_step, 2 threads", "200", "fused, 8 learners", "500", "2.50x (2.00-3.00)"]
    ]


def test_the_table_of_gains_leaves_open_what_was_not_measured() -> None:
    assert gains_table([GROUP]).rows == [["MLP", "4", "2.00x (1.50-2.00)", ""]]


def test_the_long_table_has_a_row_for_every_implementation_and_number_of_learners() -> None:
    rows = table([GROUP]).rows
    assert rows[0] == ["MLP", "4", "pytorch", "", "1", "100", "1.00x (1.00-1.00)"]
    assert [row[2:5] for row in rows] == [
        ["pytorch", "", "1"],
        ["compiled", "", "1"],
        ["compiled_step", "", "2"],
        ["eager", "1", "1"],
        ["eager", "8", "2"],
        ["fused", "8", "1"],
        ["graph", "1", "2"],
        ["graph", "2", "1"],
        ["graph+compiled", "1", "1"],
    ]


def test_the_table_of_bounds_shows_the_estimates() -> None:
    (row,) = bounds_table([BOUND]).rows
    assert row[:3] == ["MLP", "4", "graph, 2 learners"]
    assert row[3:] == ["20", "30.0", "4.0", "1,000.0", "50.0", "30.0", "60%", "20%", "2%", "arithmetic"]


def test_the_tables_stand_without_bow_and_without_the_compiler() -> None:
    assert contest_table([PYTORCH_ALONE]).rows == [["LeNet", "16", "pytorch", "100", "", "", ""]]
    assert len(table([PYTORCH_ALONE]).rows) == 1
    assert gains_table([PYTORCH_ALONE]).rows == [["LeNet", "16", "", ""]]
    assert summary(PYTORCH_ALONE) == "LeNet, batch 16: pytorch 100 samples/s; took 33 s"


def test_the_tables_stand_without_pytorch_and_without_anybody() -> None:
    rows = contest_table([BOW_ALONE, NOBODY]).rows
    assert rows == [["LeNet", "16", "", "", "eager, 8 learners", "110", ""], ["LeNet", "16", "", "", "", "", ""]]
    assert table([BOW_ALONE]).rows[0] == ["LeNet", "16", "eager", "1", "1", "90", ""]
    assert table([NOBODY]).rows == []
    assert summary(BOW_ALONE) == "LeNet, batch 16: bow 110 samples/s (eager, 8 learners); took 33 s"
    assert summary(NOBODY) == "LeNet, batch 16: nobody ran; took 33 s"


def test_the_summary_names_both_best_settings() -> None:
    assert summary(GROUP) == (
        "MLP, batch 4: compiled_step, 2 threads 200 samples/s, bow 2.50x (2.00-3.00) as fast (fused, 8 learners); "
        "took 33 s"
    )


VALUES = {
    "command": "python -m benchmarks engines",
    "date": "2026-01-02T03:04:05+00:00",
    "seconds": 60.0,
    "settings": {"repeats": 3, "stint_s": 0.2, "threads": [1, 2]},
    "fixed": "all else",
    "geometric_mean": 4.0,
    "operator_us": {"python": {"median": 2.0, "low": 1.9, "high": 2.1, "n": 3}},
    "core": {"gflop_per_s": 96.5},
    "rule": "a rule",
    "sentences": sentences([BOUND]),
    "ratio": "to plain PyTorch",
}


@pytest.mark.parametrize(
    "part",
    [
        "`python -m benchmarks engines`",
        "a processor, 2 cores",
        "2.50x (2.00-3.00)",
        "raced again alone",
        "Geometric mean of the medians: 4.00",
        "no compiler",
        "MLP, 20 operators a step, is bounded in engine `graph` by arithmetic at batch 4 (60% of the time).",
        "Python, the call alone 2.00 us (1.90-2.10)",
        "96.5 GFLOP/s",
    ],
)
def test_the_page_says_how_where_and_what_was_left_out(part: str) -> None:
    assert part in markdown([GROUP], [BOUND], VALUES, ENVIRONMENT)


def test_the_page_shows_best_against_best_first_and_everybody_last() -> None:
    page = markdown([GROUP], [BOUND], VALUES, ENVIRONMENT)
    tables = (contest_table([GROUP]), gains_table([GROUP]), bounds_table([BOUND]), table([GROUP]))
    places = [page.index(shown.markdown()) for shown in tables]
    assert places == sorted(places)


def test_where_bow_did_not_run_the_page_stands() -> None:
    values = {**VALUES, "geometric_mean": None, "sentences": {}, "core": {"gflop_per_s": None}}
    page = markdown([PYTORCH_ALONE], [], values, ENVIRONMENT)
    assert "LeNet" in page
    assert "GFLOP/s." not in page
