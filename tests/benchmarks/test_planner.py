"""The paper's experiments on planning, simulated: the program in its small form, its tables and pictures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arguments import parse
from benchmarks.document import keys_in
from benchmarks.planner import Settings, run
from benchmarks.planner.page import BENCHMARK, KEYS, replaced, sections
from benchmarks.planner.paper import TABLE_4
from benchmarks.planner.problems import cluster
from benchmarks.planner.proofs import check_neighbours
from benchmarks.planner.settings import PARTS
from benchmarks.planner.structure import strategy_svg
from bow.errors import SettingError
from bow.planning.rules import RULES
from bow.planning.search.baselines import data_parallel
from bow.planning.search.search_space import SplitSpace
from tests.planning.search_graphs import language_model, perceptron

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the program in its small form writes, beside a document that asks for a table."""
    out = tmp_path_factory.mktemp("planner")
    (out / "planning.md").write_text("Before\n<!-- planner: optimum -->\nold\n<!-- end -->\nAfter\n")
    assert run(parse(Settings, ["quick=true", f"out={out}"]), "python -m benchmarks planner quick=true") == 0
    return json.loads((out / "planner.json").read_text()), out


def test_the_program_writes_every_part_table_and_picture(small: tuple[dict[str, Any], Path]) -> None:
    values, out = small
    assert set(values["made"]) == set(PARTS)
    assert all(values[part] for part in PARTS)
    page = (out / "planner.md").read_text()
    found = list(sections(values))
    assert {section.key for section in found} == set(KEYS) - {"optcnn"}  # that is for 16 devices
    assert all(f"## {section.title}" in page for section in found)
    assert {path.name for path in (out / "images").iterdir()} == {"planner_nmt.svg", "planner_curve.svg"}


def test_the_tables_of_the_document_are_replaced_and_nothing_else(small: tuple[dict[str, Any], Path]) -> None:
    values, out = small
    text = (out / "planning.md").read_text()
    assert text.startswith("Before\n<!-- planner: optimum -->\n")
    assert text.endswith("<!-- end -->\nAfter\n")
    assert "old" not in text
    assert replaced(text, values) == text


def test_what_is_found_fits_together(small: tuple[dict[str, Any], Path]) -> None:
    values, _ = small
    for proof in values["proof"].values():
        assert 0 <= proof["bound_ms"] <= proof["best_ms"]  # 0: there was no time for bounds
        assert proof["best_ms"] <= proof["search_ms"]
    for by_devices in values["neighbours"].values():
        for each in by_devices.values():
            assert each["is_local_optimum"]
            assert each["neighbours"] > 0
            assert each["found_ms"] <= each["walk_ms"]
    for by_devices in values["simulators"].values():
        for each in by_devices.values():
            assert set(each["per_s"]) == {"full", "delta", "incremental"}
            assert 0 < each["replayed"] <= each["proposals"]
    for networks in values["clusters"].values():
        for by_devices in networks.values():
            for each in by_devices.values():
                strategies = each["strategies"]
                assert strategies["found"]["step_ms"] <= strategies["data"]["step_ms"]
    assert values["seeds"]["long"]["0"]["budget_s"] == 10 * values["seeds"]["short"]["0"]["budget_s"]


def test_neighbours_are_all_of_the_space_that_a_search_chooses_from() -> None:
    graph, topology = perceptron(samples=6, sizes=(8, 6)), cluster("P100", 4)
    found = check_neighbours(graph, topology, search_s=0.05, seed=0)
    even, uneven = (SplitSpace(graph, RULES, 4, even=even).num_neighbours for even in (True, False))
    assert found["neighbours"] == uneven > even
    (section,) = sections({"neighbours": {"nmt": {"4": found}}})
    assert "tiles of equal or unequal sizes" in section.remark
    del found["even"]  # results without it are of tiles of equal sizes
    (section,) = sections({"neighbours": {"nmt": {"4": found}}})
    assert "tiles of equal sizes" in section.remark


def test_every_seed_is_held_against_the_best_long_search_and_those_repeated_against_their_own() -> None:
    def of(found_ms: float) -> dict[str, float]:
        return {"seconds": 120.0, "evaluated": 10, "found_ms": found_ms}

    seeds = {
        "baselines": {"data": {"step_ms": 300.0}, "expert": {}},
        "short": {"0": of(103.0), "1": of(110.0), "2": of(104.0)},
        "long": {"0": of(102.0), "1": of(100.0)},
    }
    (section,) = sections({"seeds": seeds})
    assert "2 of 3 seeds were repeated with ten times the time: 1 of 2 are at most 5% (the aim)" in section.remark
    assert "then finds, the furthest 10.0%. The best of the long searches found 100.00 ms" in section.remark
    assert "2 of 3 are at most 5% (the aim) behind that, the furthest of all seeds 10.0%." in section.remark
    assert [row[5:8] for row in section.table.rows] == [
        ["+1.0%", "+3.0%", "2.91"],
        ["+10.0%", "+10.0%", "2.73"],
        ["", "+4.0%", "2.88"],
    ]
    (section,) = sections({"seeds": {**seeds, "long": {}}})
    assert section.remark == "K80s, two processes. Median 104.00 ms, worst 110.00 ms."


def test_the_ratios_of_table_4_are_those_that_the_paper_prints() -> None:
    ratios = [ratio for by_devices in TABLE_4.values() for _, _, ratio in by_devices.values()]
    assert (min(ratios), max(ratios)) == (2.2, 6.9)  # section 8.3.2
    assert all(
        full / delta == pytest.approx(ratio, rel=0.1) for of in TABLE_4.values() for full, delta, ratio in of.values()
    )


def test_parts_that_are_made_again_replace_their_own_and_leave_the_others(
    small: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    values, _ = small
    (tmp_path / "planner.json").write_text(json.dumps(values))
    settings = replace(parse(Settings, ["quick=true", "parts=curve"]), out=tmp_path)
    assert run(settings, "python -m benchmarks planner parts=curve") == 0
    again = json.loads((tmp_path / "planner.json").read_text())
    assert again["made"]["curve"]["command"] == "python -m benchmarks planner parts=curve"
    assert again["made"]["seeds"] == values["made"]["seeds"]
    assert again["seeds"] == values["seeds"]


def test_a_document_that_asks_for_a_table_that_there_is_none_of_is_refused(small: tuple[dict[str, Any], Path]) -> None:
    with pytest.raises(SettingError, match="there is no table 'figure 7'"):
        replaced("<!-- planner: figure 7 -->\n<!-- end -->", small[0])


def test_the_document_states_what_the_committed_results_say() -> None:
    text = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    assert set(keys_in(text, BENCHMARK)) == set(KEYS)
    committed = ROOT / "benchmarks" / "results" / "planner.json"
    if not committed.is_file():
        pytest.skip("the results of python -m benchmarks planner are not committed yet")
    assert replaced(text, json.loads(committed.read_text(encoding="utf-8"))) == text


def test_a_strategy_is_drawn_with_a_part_for_each_tile() -> None:
    graph = language_model(steps=2)
    drawn = [number for number, operator in enumerate(graph.operators) if operator.weights]
    splits = data_parallel(graph, RULES, 4)
    picture = strategy_svg(graph, RULES, splits, ["a", "b", "c", "d"], "data parallel")
    # the ground, the legend, the tiles, and a frame for each operator
    assert picture.count("<rect") == 1 + 4 + sum(splits[number].num_tiles + 1 for number in drawn)
    assert picture.count("<title>") == len(drawn)
    assert "lstm0" in picture


@pytest.mark.parametrize(("gpu", "devices", "nodes"), [("P100", 2, 1), ("P100", 16, 4), ("K80", 64, 16)])
def test_clusters_have_as_many_machines_as_their_devices_need(gpu: str, devices: int, nodes: int) -> None:
    topology = cluster(gpu, devices)
    assert topology.num_devices == devices
    assert len(topology.nodes) == nodes


@pytest.mark.parametrize("word", ["seeds=0", "long_seeds=11", "proof_s=0", "parts=", "local_devices=0"])
def test_settings_without_sense_are_refused(word: str) -> None:
    with pytest.raises(SettingError):
        parse(Settings, [word])
