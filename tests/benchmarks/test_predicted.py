"""`python -m benchmarks predicted` in small, its strategies, its verdict."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks import predicted_report
from benchmarks.predicted import Settings, run
from benchmarks.predicted_picture import draw
from benchmarks.predicted_steps import spans_ms
from benchmarks.predicted_strategies import draw_strategies, mixed
from bow.devices import available_cores
from bow.errors import SettingError
from bow.planning.problem.partition import everything_on
from bow.planning.problem.topology_files import load_topology
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.costs import RooflineCosts
from bow.schedule import Span
from tests.planning.search_graphs import perceptron

PAIR = load_topology("two_cores")
GRAPH = perceptron()
PROBLEM = Problem(GRAPH, RULES, PAIR, RooflineCosts(GRAPH, RULES, PAIR))


def networks(*times: tuple[float, float]) -> dict[str, Any]:
    """A network with so many strategies: predicted and measured milliseconds."""
    rows = [
        {
            "strategy": f"strategy {number}",
            "predicted_ms": predicted,
            "measured_ms": {"median": measured, "low": measured, "high": measured, "n": 3},
            "error": predicted / measured - 1,
            "messages": 4,
            "sent_mb": 0.5,
        }
        for number, (predicted, measured) in enumerate(times)
    ]
    links = [[{"between": ["a", "b"], "latency_us": 200.0, "gb_per_s": 1.0, "shared": False}]]
    return {"net": {"title": "Net", "samples": 8, "operators": 5, "links": links, "strategies": rows}}


def test_aims_are_met_when_errors_are_small_and_pairs_in_order() -> None:
    verdict = predicted_report.judge(networks((10, 10), (22, 20), (44, 40)))
    assert (verdict.strategies, verdict.pairs, verdict.right) == (3, 3, 3)
    assert verdict.largest == pytest.approx(0.1)
    assert verdict.typical == pytest.approx(0.1)
    assert verdict.is_met


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([(10, 10), (20, 20), (13.2, 10)], id="one prediction is off by more than 30 %"),
        pytest.param([(12, 10), (23.5, 20), (36, 30)], id="most are off by more than 15 %"),
        pytest.param([(11, 10), (10.9, 12)], id="a pair is in the wrong order"),
    ],
)
def test_aims_are_missed_one_by_one(times: list[tuple[float, float]]) -> None:
    assert not predicted_report.judge(networks(*times)).is_met


def test_pairs_that_hardly_differ_need_no_order() -> None:
    verdict = predicted_report.judge(networks((10.1, 10), (10.0, 11)))
    assert (verdict.pairs, verdict.is_met) == (0, True)


def test_strategies_are_of_every_sort_and_none_stands_there_twice() -> None:
    drawn = draw_strategies(PROBLEM, num_random=2, num_mixed=3, proposals=5, seed=0)
    assert len(set(drawn.values())) == len(drawn)
    assert {"single", "data", "random 0", "random 1"} <= drawn.keys()
    assert sum("random" in name for name in drawn) == 5
    for splits in drawn.values():
        PROBLEM.partition(splits).check(GRAPH, 2, RULES)
    assert draw_strategies(PROBLEM, num_random=2, num_mixed=3, proposals=5, seed=0) == drawn


def test_mixed_strategies_keep_the_rest() -> None:
    splits = everything_on(GRAPH)
    changed = mixed(splits, SplitSpace(GRAPH, RULES, 2), 0.01, random.Random(3))
    assert sum(one != other for one, other in zip(splits, changed, strict=True)) <= 1


def test_spans_add_up_by_place_and_category() -> None:
    spans = [
        Span("a", "device 0", 0, 2_000_000, "forward"),
        Span("b", "device 0", 2_000_000, 3_000_000, "forward"),
        Span("c", "device 1", 0, 500_000, "transfer"),
    ]
    assert spans_ms(spans) == {"device 0": {"forward": 3.0}, "device 1": {"transfer": 0.5}}


def test_settings_outside_their_range_are_refused() -> None:
    with pytest.raises(SettingError, match="networks must not be empty"):
        Settings(networks=())
    with pytest.raises(SettingError, match="random and mixed must be at least 0, got -1 and 8"):
        Settings(random=-1)


@pytest.mark.skipif(len(available_cores()) < 2, reason="needs two cores; this process has one")
def test_the_quick_form_writes_results_page_and_picture(tmp_path: Path) -> None:
    assert run(Settings(out=tmp_path, quick=True), "python -m benchmarks predicted quick=true") == 0
    values = json.loads((tmp_path / "predicted.json").read_text())
    rows = values["networks"]["rnnlm"]["strategies"]
    assert {"single", "data", "random 0"} <= {row["strategy"] for row in rows}
    for row in rows:
        assert row["error"] == pytest.approx(row["predicted_ms"] / row["measured_ms"]["median"] - 1, abs=1e-3)
        assert row["measured_spans_ms"]["device 0"]["forward"] >= 0
        assert row["predicted_spans_ms"]
    assert values["networks"]["rnnlm"]["overlap"] is False
    text = (tmp_path / "predicted.md").read_text()
    assert "RNNLM" in text
    assert predicted_report.told(values) in text
    assert (tmp_path / "predicted.png").read_bytes().startswith(b"\x89PNG")


def test_picture_has_room_for_every_network(tmp_path: Path) -> None:
    many = {f"net{number}": {**networks((1, 2))["net"], "title": f"Net {number}"} for number in range(8)}
    draw({"networks": many}, tmp_path / "predicted.png")
    assert (tmp_path / "predicted.png").stat().st_size > 10_000
