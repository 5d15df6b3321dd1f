"""Fixed budgets of samples: who trains with whom, what is compared, and that nothing is trained twice."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel

import benchmarks.budgets as budgets
from benchmarks import main
from benchmarks.budgets import Config, compared, correct, paired, times
from benchmarks.budgets.training import CONTESTANTS, RATES, TASKS, Cell, LastPart, Plan, carry_out, train

ROWS = {"one_16": 0.90, "one_64": 0.92, "sma_4": 0.95, "sma_8": 0.80}
NOISE = (0.001, -0.002, 0.0, 0.003, -0.001, 0.002, -0.003, 0.0)


def row(name: str, test: float, validation: float, phase: int = 0) -> dict[str, Any]:
    values = [test + NOISE[(index + phase) % len(NOISE)] for index in range(len(NOISE))]
    is_single = CONTESTANTS[name].is_single
    return {"contestant": name, "ema": False, "is_single": is_single, "validation": validation, "test": values}


def test_differences_are_paired_by_seed() -> None:
    first, second = [0.91, 0.93, 0.92, 0.95], [0.90, 0.90, 0.91, 0.94]
    found = paired(first, second)
    reference = ttest_rel(first, second, alternative="greater")
    interval = ttest_rel(first, second).confidence_interval(0.95)
    assert found["mean"] == pytest.approx(1.5)
    assert found["p_better"] == pytest.approx(reference.pvalue, rel=0.01)
    assert found["p_worse"] == pytest.approx(1 - reference.pvalue, rel=0.01)
    assert (found["low"], found["high"]) == pytest.approx((100 * interval.low, 100 * interval.high), abs=0.001)
    assert paired(first, first)["mean"] == 0
    assert paired([*first, 0.0], [*second, 0.9]) == found


def test_chance_is_corrected_for() -> None:
    tests = [{"p_better": p, "p_worse": 1 - p} for p in (0.03, 0.001, 0.98, 0.02)]
    correct(tests)
    assert [test["verdict"] for test in tests] == ["", "better", "", ""]


def test_the_best_learner_is_chosen_by_validation_samples_and_not_by_the_test() -> None:
    rows = [row(name, test, 1 - test, phase) for phase, (name, test) in enumerate(ROWS.items())]
    found = compared(rows)
    assert found["best"] == "one_16"
    assert [each["over_best"] and each["over_best"]["verdict"] for each in found["rows"]] == [
        None,
        "better",
        "better",
        "worse",
    ]
    assert {(pair["first"], pair["second"]) for pair in found["pairs"]} == {("sma_4", "one_64")}


def test_who_is_less_accurate_needs_more_samples() -> None:
    def tables(loss: float) -> list[dict[str, Any]]:
        rows = ([row("one_16", low, 1.0), row("sma_2", low - loss, 0.5)] for low in (0.80, 0.90))
        pairs = zip((1_000, 4_000), rows, strict=True)
        return [{"task": "digits", "budget": budget, **compared(own)} for budget, own in pairs]

    (found,), (equal,) = times(tables(0.05)), times(tables(0.0))
    assert found["gain"] == pytest.approx(5.0)
    assert found["fastest"] == "one_16"
    assert found["speeds"]["sma_2"] > 1
    assert equal["times"]["sma_2"]["mean"] == pytest.approx(1 / equal["speeds"]["sma_2"])
    assert found["times"]["sma_2"]["mean"] == pytest.approx(2 / found["speeds"]["sma_2"])


def test_every_number_of_rounds_is_whole_and_every_budget_is_in_order() -> None:
    cells = Config().all_cells
    assert len(set(cells)) == len(cells)
    for cell in cells:
        contestant = CONTESTANTS[cell.contestant]
        rounds, rest = divmod(cell.budget, contestant.learners * contestant.batch_size)
        assert rest == 0
        if isinstance(sync := contestant.sync(rounds), LastPart):
            assert not sync.due(int(0.5 * rounds), 4)
            assert sync.due(rounds - 1, 4)
        else:
            assert rounds % sync.every == 0
    assert all(shorter < longer for task in TASKS.values() for shorter, longer in [task.budgets])


def test_a_cell_climbs_until_the_rates_beside_the_best_are_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    goodness = {0.02: (0.90, 0.80), 0.04: (0.80, 0.90), 0.08: (0.70, 0.85)}
    trained: list[float] = []

    def made(cell: Cell, rate: float, seed: int, engine: str, read: tuple[str, ...] = ("validation", "test")) -> Any:
        trained.append(rate)
        return dict.fromkeys(read, goodness.get(rate, (0.1, 0.1)))

    monkeypatch.setattr("benchmarks.budgets.training.train", made)
    found = carry_out(Cell("digits", 256, "one_16"), Plan(RATES, 1, 2, "eager", float("inf")))
    assert found is not None
    assert [rate for rate, *_ in found["sweep"]] == [0.01, 0.02, 0.04, 0.08, 0.16]
    assert found["rates"] == [0.02, 0.04]
    assert found["test"] == [[0.90, 0.90], [0.90, 0.90]]
    assert found["trainings"] == len(trained)
    assert carry_out(Cell("digits", 256, "one_16"), Plan(RATES, 1, 2, "eager", 0.0)) is None


def test_contestants_of_a_seed_begin_with_the_same_weights() -> None:
    reached = [
        train(Cell("digits", 16 * learners, name), 1e-12, 3, "eager", ("test",))["test"][0]
        for name, learners in (("one_16", 1), ("sma_4", 4))
    ]
    assert reached[0] == reached[1]


def test_cells_are_kept_by_commit_and_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "CELLS", tmp_path / "cells")
    monkeypatch.setattr(budgets, "find_commit", lambda *folders: "0123456")
    made: list[Cell] = []

    def carried(cell: Cell, plan: Plan) -> dict[str, Any]:
        made.append(cell)
        return {
            "sweep": [[rate, 0.5, 0.5] for rate in plan.rates],
            "rates": [plan.rates[0]],
            "validation": [[0.5, 0.6]],
            "test": [[0.5, 0.6]],
            "trainings": 4,
            "seconds": 1.0,
        }

    monkeypatch.setattr(budgets, "carry_out", carried)
    words = ["tasks=digits", "contestants=one_16,sma_4", "workers=1", "seeds=2", f"docs={tmp_path}"]
    assert main("budgets", [*words, f"out={tmp_path / 'first'}"]) == 0
    assert main("budgets", [*words, f"out={tmp_path / 'second'}"]) == 0
    assert len(made) == len(set(made)) == 4
    first, second = (json.loads((tmp_path / name / "budgets.json").read_text()) for name in ("first", "second"))
    assert first["digits"] == second["digits"]
    assert statistics.fmean(first["digits"]["tables"][0]["rows"][0]["test"]) == pytest.approx(0.55)

    words = ["tasks=table", *words[1:]]
    assert main("budgets", [*words, f"out={tmp_path / 'first'}"]) == 0
    both = json.loads((tmp_path / "first" / "budgets.json").read_text())
    assert (both["digits"], both["made"]["digits"]) == (first["digits"], first["made"]["digits"])
    assert [*both["made"]] == ["digits", "table"]

    monkeypatch.setattr(budgets, "find_commit", lambda *folders: "7654321")  # nothing of it is trained yet
    monkeypatch.setattr(budgets, "carry_out", lambda cell, plan: None)  # nor is there time
    assert main("budgets", [*words, f"out={tmp_path / 'first'}"]) == 0
    assert json.loads((tmp_path / "first" / "budgets.json").read_text()) == both
