from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bow.errors import BowError, ScheduleError
from bow.planning.problem.partition import Partition
from bow.planning.problem.topology_files import load_topology, topology_from_dict
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.search import PLANNED_FOR, Found, search
from bow.planning.tiles.planning import problem_of
from tests.planning.search_graphs import perceptron


def test_what_is_saved_says_for_which_devices_and_from_which_splits_it_was_chosen(tmp_path: Path) -> None:
    graph, topology = perceptron(), load_topology("p100_node")
    settings = SearchSettings(None, 5, starts=("data",), even=True, devices="regular", descend=False)
    found = search(problem_of(graph, topology), settings)
    found.save(tmp_path / "partition.json")
    text = (tmp_path / "partition.json").read_text()
    planned_for = json.loads(text)[PLANNED_FOR]
    assert topology_from_dict(planned_for.pop("topology")) == topology
    assert planned_for == {"makespan_ns": found.makespan_ns, "even": True, "device_lists": "regular"}
    assert Partition.from_json(text) == found.partition
    loaded = Found.load(tmp_path / "partition.json")
    assert loaded == replace(found, problem=None, chains=(), seconds=0.0)
    assert (loaded.settings.even, loaded.settings.devices) == (True, "regular")
    assert loaded.to_json() == text
    with pytest.raises(ScheduleError, match="a partition loaded from a file has no model"):
        loaded.explain()
    with pytest.raises(ScheduleError, match="a partition loaded from a file has no model"):
        _ = loaded.bound_ns


@pytest.mark.parametrize("origin", [[1], {"topology": {"devices": 1}}, {"makespan_ns": []}, {"device_lists": "odd"}])
def test_a_file_whose_origin_is_damaged_is_refused(origin: object, tmp_path: Path) -> None:
    text = json.loads(Partition("0", ()).to_json()) | {PLANNED_FOR: origin}
    (tmp_path / "partition.json").write_text(json.dumps(text))
    with pytest.raises(BowError):
        Found.load(tmp_path)
