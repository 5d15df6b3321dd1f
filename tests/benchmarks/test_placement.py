"""`python -m benchmarks placement` in small, its tables, and that the document agrees with the committed results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.document import keys_in
from benchmarks.placement import Settings, run
from benchmarks.placement_networks import PLACED
from benchmarks.placement_report import BENCHMARK, DOCUMENT, KEYS, missed, replaced
from benchmarks.placement_tables import best_baseline, misses
from bow.errors import SettingError
from bow.planning.placement.grouping import module_groups
from bow.planning.placement.methods import METHODS

ROOT = Path(__file__).parents[2]

FEW = ("cpu", "gpu", "expert", "learned", "mcmc")


@pytest.mark.parametrize("name", sorted(PLACED))
def test_networks_have_the_groups_of_the_paper(name: str) -> None:
    network = PLACED[name]
    groups = module_groups(network.graph(network.tiny))
    kinds = groups.statistics.kinds
    steps = network.tiny.inputs[0]
    assert groups.is_acyclic
    if name == "rnnlm":
        assert kinds == {"embedding": steps, "lstm_cell": 2 * steps, "softmax": steps}
    elif name == "nmt":
        assert kinds["lstm_cell"] == 4 * steps
        assert kinds["embedding"] == 2 * steps
        assert kinds["softmax"] == steps
        assert kinds["attention"] == steps + 1  # the keys are made once
    else:
        assert kinds["branch"] == 42  # nine modules of four branches, two of three


def test_cells_are_the_papers_sizes_over_all_links_and_large_ones_over_the_first() -> None:
    cells = [(cell.network, cell.size, cell.gpus, cell.links, cell.copies) for cell in Settings().cells()]
    assert len(cells) == 16
    assert ("nmt", "paper", 4, "slow", 280.0) in cells
    assert ("nmt", "large", 2, "data_sheet", 1.0) in cells
    assert not any(size == "large" and links == "slow" for _, size, _, links, _ in cells)
    assert not any(network == "inception" and size == "large" for network, size, *_ in cells)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("placement")
    settings = Settings(out=out, networks=("rnnlm",), methods=FEW, quick=True)
    assert run(settings, "python -m benchmarks placement quick=true") == 0
    return json.loads((out / "placement.json").read_text()), out


def test_the_small_form_writes_tables_and_pictures(small: tuple[dict[str, Any], Path]) -> None:
    values, out = small
    (case,) = values["cases"]
    rows = {row["method"]: row for row in case["rows"]}
    assert list(rows) == list(FEW)
    assert all(row["seconds"] for row in rows.values())
    assert {load["device"] for load in rows["expert"]["loads"]} == {"cpu", "gpu0", "gpu1"}
    assert sum(rows["learned"]["groups_on"].values()) == case["statistics"]["groups"]
    assert rows["cpu"]["embeddings_on"] == ["cpu"]
    assert case["towers"]["synchronous"]["step_s"] > 0
    text = (out / "placement.md").read_text()
    assert "RNNLM, tiny" in text
    assert text.count("\n## ") == 6
    pictures = sorted((out / "images").iterdir())
    assert len(pictures) == len(FEW)
    for picture in pictures:
        root = ElementTree.fromstring(picture.read_text())
        boxes = [each for each in root.iter() if each.tag.endswith("title")]
        assert len(boxes) == case["statistics"]["groups"]


def test_tables_of_the_document_are_replaced_by_those_of_a_result_and_others_stay(
    small: tuple[dict[str, Any], Path],
) -> None:
    text = "Before\n<!-- placement: times -->\nold\n<!-- end -->\nThen\n<!-- placement: real -->\nold\n<!-- end -->\n"
    new = replaced(text, {"placement": small[0]})
    assert new.startswith("Before\n<!-- placement: times -->\n\n| network | links | GPUs | cpu |")
    assert new.endswith("Then\n<!-- placement: real -->\nold\n<!-- end -->\n")
    assert replaced(new, {"placement": small[0]}) == new
    with pytest.raises(SettingError, match="there is no table 'speed'"):
        replaced("<!-- placement: speed -->\n<!-- end -->", {})


def test_the_document_states_what_the_committed_results_say() -> None:
    text = (ROOT / "docs" / DOCUMENT).read_text(encoding="utf-8")
    folder = ROOT / "benchmarks" / "results"
    paths = [folder / f"{name}.json" for name in ("placement", "placement_real", "placement_small")]
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()}
    assert set(keys_in(text, BENCHMARK)) <= set(KEYS)
    assert replaced(text, results) == text


def test_the_document_names_every_method() -> None:
    text = (ROOT / "docs" / DOCUMENT).read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in METHODS)


def row(method: str, seconds: float | None) -> dict[str, object]:
    return {"method": method, "seconds": seconds, "why_not": "", "greedy_s": None}


@pytest.mark.parametrize(
    ("network", "learned", "missed_by"),
    [
        ("rnnlm", 1.04, None),
        ("rnnlm", 1.06, "+6.0% against gpu"),
        ("nmt", 0.99, None),
        ("nmt", 1.01, "+1.0% against gpu"),
        ("rnnlm", None, "nothing fits"),
    ],
)
def test_aims_are_five_percent_behind_and_ahead_in_translation(
    network: str, learned: float | None, missed_by: str | None
) -> None:
    rows = [row("gpu", 1.0), row("cpu", None), row("mcmc", 0.5), row("learned", learned)]
    case = {"network": network, "title": "A", "gpus": 2, "rows": rows}
    assert best_baseline(case) == ("gpu", 1.0)
    assert misses(case, 1.05) == missed_by
    assert missed({"cases": [case]}) == ([] if missed_by is None else [f"A, 2 GPUs: {missed_by}"])


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"gpus": (0,)}, {"budget_s": 0.0}, {"networks": ()}, {"placements": -1}, {"copies": 0.0}):
        with pytest.raises(SettingError):
            Settings(**wrong)  # type: ignore[arg-type]
