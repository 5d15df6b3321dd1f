"""The page and the picture, of made-up trainings."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from benchmarks.peers.picture import draw, labels_of, typical
from benchmarks.peers.report import edges, finals_table, markdown, setting_of, sweep_table
from benchmarks.peers.training import SWEEP, Training, by_choice
from benchmarks.peers.verdict import decide
from tests.benchmarks.groups import ENVIRONMENT
from tests.benchmarks.peers.made_up import diverged, failed, not_reached, training

ROOT = Path(__file__).parents[3]

FINALS = [
    *(training("pytorch", seed=seed, looks=10) for seed in (1, 2, 3)),
    *(
        training("bow", seed=seed, looks=10 + seed, throughput=20.0, rest_s=5.0, ran_as="graph, 4 learners")
        for seed in (1, 2, 3)
    ),
    *(not_reached("ensemble", seed=seed) for seed in (1, 2)),
    training("ensemble", seed=3, looks=40),
    *(diverged("large_batch", seed=seed) for seed in (1, 2, 3)),
    *(failed("local_sgd", seed=seed) for seed in (1, 2, 3)),
]
SWEPT = [
    training("pytorch", stage=SWEEP, batch_size=16, lr=0.01, looks=10),
    training("pytorch", stage=SWEEP, batch_size=32, lr=0.02, looks=10, ending="time used up", best=0.88),
    training("pytorch", stage=SWEEP, batch_size=32, lr=0.04, looks=1, ending="diverged"),
]
VALUES: dict[str, Any] = {
    "command": "python -m benchmarks peers",
    "date": "2026-01-02T03:04:05+00:00",
    "seconds": 123.4,
    "fixed": "LeNet",
    "rule": "up and down",
    "packages": {"lightning": "2.6.6"},
    "epoch_samples": 60000,
    "test_samples": 10000,
    "rehearsed_epochs": 0.1,
    "rehearsals": 3,
    "finalists": 2,
    "left_out": {"cuda_graph": "needs a GPU", "lightning": "not installed (pip install lightning)"},
    "finals": {"pytorch": [{"batch_size": 16, "lr": 0.01}]},
    "settings": {
        "contestants": ["pytorch", "bow", "ensemble", "large_batch", "local_sgd", "cuda_graph", "lightning"],
        "model": "lenet",
        "data": "fashion_mnist",
        "target": 0.89,
        "epochs": 6,
        "limit_s": 120.0,
        "evaluate_every": 0.125,
        "seeds": 3,
        "batch_sizes": (16, 32),
        "lrs": (0.01, 0.02, 0.04),
        "threads": (1, 2),
    },
}


def row(title: str) -> Sequence[str]:
    return next(row for row in finals_table(FINALS, 0.89).rows if row[0] == title)


def page(finals: Sequence[Training] = FINALS) -> str:
    return markdown([*SWEPT, *finals], decide(finals), VALUES, ENVIRONMENT)


def test_the_fastest_comes_first_and_who_never_arrives_last() -> None:
    titles = [row[0] for row in finals_table(FINALS, 0.89).rows]
    assert titles == ["bow", "PyTorch", "torch.func ensemble", "PyTorch, large batch", "accelerate LocalSGD"]


def test_a_row_has_medians_and_spreads() -> None:
    assert row("bow") == (
        "bow",
        "of its own sweep",
        "16",
        "0.01",
        "1",
        "graph, 4 learners",
        "65.0 (60.0 to 70.0)",
        "1,200 (1,100 to 1,300)",
        "20 (20 to 20)",
        "5.0 (5.0 to 5.0)",
        "0.65 (0.60 to 0.70)",
    )
    assert row("PyTorch")[-1] == "1.00 (1.00 to 1.00)"


def test_what_did_not_arrive_diverged_or_failed_is_told() -> None:
    assert row("torch.func ensemble")[6] == "reached in 1 of 3, best 90.0%"
    assert row("PyTorch, large batch")[6:8] == ("not reached, 3 diverged, best 10.0%", "")
    assert row("accelerate LocalSGD")[6:] == ("failed: RuntimeError: no compiler", "", "", "", "")


def test_the_page_says_whether_the_claim_holds_and_who_was_left_out() -> None:
    text = page()
    assert (
        "**The claim holds: bow takes 0.65 (0.60 to 0.70, n = 3) of the time of plain PyTorch. Of the time of "
        "the fastest peer, PyTorch with batch 16 and lr 0.01, it takes 0.65 (0.60 to 0.70, n = 3).** With seed 2,"
        in text
    )
    assert "| 1 | 60.0 | 100.0 | 0.60 | 1.10 | 2.00 | 0.05 |" in text
    assert "PyTorch, CUDA graph: left out, needs a GPU." in text
    assert "Lightning: left out, not installed (pip install lightning)." in text
    assert "`python -m benchmarks peers`, 2026-01-02, 123 s." in text
    assert "lightning 2.6.6." in text
    assert "torch.compile" not in text.partition("## How it was measured")[0]  # nobody who was not asked
    assert "{" not in text


def test_the_page_says_that_the_target_was_not_reached() -> None:
    seeds = (1, 2, 3)
    text = page(
        [*(training("pytorch", seed=seed) for seed in seeds), *(not_reached("bow", seed=seed) for seed in seeds)]
    )
    assert "**The claim does not hold: with no seed did both reach the target.**" in text
    assert "| bow | of its own sweep | 16 | 0.01 | 1 |  | not reached, best 85.0% |" in text


def test_the_sweep_shows_times_accuracies_and_divergence() -> None:
    table = sweep_table(SWEPT)
    assert table.columns == ["batch", "threads", "lr 0.01", "lr 0.02", "lr 0.04"]
    assert table.rows == [("16", "1", "**100.0 s**", "", ""), ("32", "1", "", "88.0%", "✗")]


def test_a_best_at_the_edge_of_the_grid_is_pointed_out() -> None:
    assert "at the edge of the grid: batch_size 16, lr 0.01." in page()
    settings = {"batch_sizes": [8, 16, 32], "lrs": [0.01, 0.02]}
    assert edges({"batch_size": 16, "lr": 0.02}, settings) == "\nThe best is at the edge of the grid: lr 0.02.\n"
    assert edges({"batch_size": 16, "lr": 0.02}, {"batch_sizes": [8, 16, 32], "lrs": [0.02]}) == ""
    assert edges(None, settings) == ""


@pytest.mark.parametrize("finals", [FINALS, [], [failed("bow")]], ids=["all", "none", "failed"])
def test_a_picture_is_drawn(finals: list[Training], tmp_path: Path) -> None:
    draw(finals, 0.89, tmp_path / "peers.png")
    assert imread(tmp_path / "peers.png").shape[1] > 1000


def test_the_training_in_full_colour_is_that_of_the_median() -> None:
    assert typical([t for t in FINALS if t.choice.contestant == "bow"]).seed == 2
    ensembles = [t for t in FINALS if t.choice.contestant == "ensemble"]
    assert typical(ensembles).seed == 1  # those that do not arrive are the slowest


def test_two_settings_of_a_contestant_are_two_rows_and_two_lines() -> None:
    second = [training("pytorch", seed=seed, looks=9, lr=0.02) for seed in (1, 2, 3)]
    table = finals_table([*FINALS, *second], 0.89)
    rows = [(row[3], row[-1]) for row in table.rows if row[0] == "PyTorch"]
    assert rows == [("0.02", "1.00 (1.00 to 1.00)"), ("0.01", "1.11 (1.11 to 1.11)")]
    labels = labels_of(list(by_choice([*FINALS, *second])))
    assert "PyTorch, batch 16, lr 0.02" in labels.values()
    assert "bow" in labels.values()


@pytest.mark.parametrize(
    ("name", "names", "setting"),
    [
        ("pytorch", ("pytorch",), "of its own sweep"),
        ("compile", ("pytorch", "compile"), "at plain PyTorch's setting"),
        ("compile", ("compile",), "middle of the grid"),
        ("bow_goodput", ("bow", "bow_goodput"), "at bow's setting"),
        ("large_batch", ("pytorch", "large_batch"), "by linear scaling"),
    ],
)
def test_the_table_says_whose_setting_it_is(name: str, names: tuple[str, ...], setting: str) -> None:
    assert setting_of(name, names) == setting


def test_the_peers_are_pinned_in_the_constraints() -> None:
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {requirement.split(">")[0] for requirement in extras["peers"]} <= pinned
