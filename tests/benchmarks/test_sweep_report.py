"""Tables and picture of the sweep, on made-up trainings."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import image

from benchmarks.environment import Environment
from benchmarks.sweep_report import accuracy_table, best_table, draw, markdown
from benchmarks.sweep_rule import decide
from tests.benchmarks.sweeps import sweep, trial

ENVIRONMENT = Environment("a processor", 2, 7.5, (), "Linux x86_64", "3.11.9", "2.13.0", "0.1.0")
TRIALS = [
    *sweep({None: [0.98, 0.97]}, learners=1),
    *sweep({0.0: [0.90, 0.96], 0.5: [0.97, 0.98]}, learners=2),
    trial(0.5, 0.1, 0.95, seed=1),
    trial(0.5, 0.2, 0.0, seed=1, diverged=True),
]


def test_the_table_has_medians_spread_and_divergence() -> None:
    table = accuracy_table(TRIALS)
    assert table.columns == ["model", "learners", "lr", "any mu", "mu 0", "mu 0.5"]
    assert table.rows == [
        ("MLP", "1", "0.1", "98.0% (98.0-98.0)", "", ""),
        ("MLP", "1", "0.2", "97.0% (97.0-97.0)", "", ""),
        ("MLP", "2", "0.1", "", "90.0% (90.0-90.0)", "96.0% (95.0-97.0)"),
        ("MLP", "2", "0.2", "", "96.0% (96.0-96.0)", "49.0% (98.0-98.0) ✗1"),
    ]


def test_a_cell_in_which_all_diverged_is_a_cross() -> None:
    assert accuracy_table([trial(0.5, 0.1, 0.0, diverged=True)]).rows[0][-1] == "✗"


def test_the_best_of_every_mu() -> None:
    rows = best_table(TRIALS).rows
    assert rows[0] == ("MLP", "1", "any", "98.0%", "0.1", "2", "0.1-0.2", "1")
    assert rows[1] == ("MLP", "2", "0", "96.0%", "0.2", "1", "0.2-0.2", "1")


@pytest.mark.parametrize(
    "part", ["`python -m benchmarks sweep`", "a processor, 2 cores", "**mu=0", "| MLP | 2 | 0.1 |", "2 seeds"]
)
def test_the_page_has_command_machine_verdict_and_numbers(part: str) -> None:
    values = {
        "command": "python -m benchmarks sweep",
        "date": "2026-01-02T03:04:05+00:00",
        "seconds": 60.0,
        "settings": {"epochs": 6, "seeds": 2},
        "fixed": "all else",
        "metric": "accuracy",
    }
    assert part in markdown(TRIALS, decide(TRIALS), values, ENVIRONMENT)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw(TRIALS, tmp_path / "sweep.png")
    pixels = image.imread(tmp_path / "sweep.png")
    assert pixels.shape[1] > 800
    assert pixels[..., :3].std() > 0.02
