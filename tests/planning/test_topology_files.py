from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from bow.errors import TopologyError
from bow.planning.problem.topology_files import (
    load_topology,
    save_topology,
    shipped_topologies,
    topology_from_dict,
    topology_to_dict,
)

PAIR: dict[str, Any] = {
    "name": "pair",
    "kinds": {"core": {"memory_gib": 4, "tflops": 0.05, "gb_per_s": 10}},
    "devices": {"a": "core", "b": "core"},
    "links": [{"between": ["a", "b"], "latency_us": 50, "gb_per_s": 1}],
}


@pytest.mark.parametrize("name", shipped_topologies())
def test_shipped_topology_survives_json(name: str, tmp_path: Path) -> None:
    topology = load_topology(name)
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(topology_to_dict(topology)), encoding="utf-8")
    assert load_topology(path) == topology


def test_topology_survives_yaml(tmp_path: Path) -> None:
    topology = topology_from_dict({**PAIR, "overlap": False, "sum_us": 150})
    assert topology.sum_us == 150
    save_topology(topology, tmp_path / "folder" / "own.yaml")
    assert load_topology(tmp_path / "folder" / "own.yaml") == topology
    assert not topology.overlap
    with pytest.raises(TopologyError, match="cannot be written to"):
        save_topology(topology, tmp_path)


def test_names_may_be_numbers() -> None:
    line = {"latency_us": 50, "gb_per_s": 1}
    kinds = {80: PAIR["kinds"]["core"]}
    devices = {0: {"kind": 80}, 1: {"kind": "80"}}
    pair = topology_from_dict({"kinds": kinds, "devices": devices, "links": [{"between": [0, 1], **line}]})
    assert [(device.name, device.kind.name) for device in pair.devices] == [("0", "80"), ("1", "80")]
    apart = {"kinds": kinds, "devices": {0: {"kind": 80}}, "nodes": 2, "network": {"from": 0, **line}}
    assert [device.name for device in topology_from_dict(apart).devices] == ["node0.0", "node1.0"]


def test_what_hydra_composes_is_read() -> None:
    assert topology_from_dict(OmegaConf.create(PAIR)) == topology_from_dict(PAIR)


def test_papers_clusters_have_their_devices_and_links() -> None:
    p100, k80 = load_topology("p100_cluster"), load_topology("k80_cluster")
    assert (p100.num_devices, len(p100.nodes)) == (16, 4)
    assert (k80.num_devices, len(k80.nodes)) == (64, 16)
    hops = {(a, b): len(p100.route(a, b)) for a, b in ((0, 1), (0, 4))}
    assert hops == {(0, 1): 1, (0, 4): 4}  # NVLink; PCIe, network, network, PCIe
    assert [len(k80.route(0, b)) for b in (1, 2, 4)] == [2, 4, 6]  # same board, same machine, another one
    shared = set(k80.route(0, 2)) & set(k80.route(1, 3))
    assert {k80.channels[number].name for number in shared} == {
        "node0.board0 > node0.host",
        "node0.host > node0.board1",
    }


def test_number_of_nodes_can_be_chosen() -> None:
    assert load_topology("k80_cluster", nodes=2).num_devices == 8
    single = load_topology("k80_cluster", nodes=1)
    assert [device.name for device in single.devices] == ["gpu0", "gpu1", "gpu2", "gpu3"]


def test_nodes_are_copies_joined_by_the_network() -> None:
    data = {**PAIR, "switches": ["host"], "nodes": 3, "network": {"from": "host", "latency_us": 2, "gb_per_s": 5}}
    data["links"] = [*PAIR["links"], *({"between": [each, "host"], "latency_us": 1, "gb_per_s": 8} for each in "ab")]
    topology = topology_from_dict(data)
    assert [device.name for device in topology.devices] == [f"node{node}.{name}" for node in range(3) for name in "ab"]
    assert [topology.channels[number].name for number in topology.route(1, 4)] == [
        "node0.b > node0.host",
        "node0.host > network",
        "network > node2.host",
        "node2.host > node2.a",
    ]


def test_link_between_several_is_one_for_each_pair_unless_shared() -> None:
    devices = {name: "core" for name in "abc"}
    lines = topology_from_dict(
        {**PAIR, "devices": devices, "links": [{"between": ["a", "b", "c"], "latency_us": 1, "gb_per_s": 1}]}
    )
    bus = topology_from_dict(
        {
            **PAIR,
            "devices": devices,
            "links": [{"between": ["a", "b", "c"], "latency_us": 1, "gb_per_s": 1, "shared": True}],
        }
    )
    assert (len(lines.channels), len(bus.channels)) == (6, 1)
    assert topology_from_dict(topology_to_dict(bus)) == bus


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": []}, "no link leads from 'a' to 'b'"),
        ({"devices": {"a": "core", "b": "gpu"}}, "device 'b' is of kind 'gpu', which is not defined"),
        ({"nodes": 0}, "nodes must be a whole number of at least 1, got 0"),
        ({"nodes": 2}, "no link leads from 'node0.a' to 'node1.a'"),
        ({"link": []}, "a topology has no 'link'; its keys are devices, kinds, links,"),
        ({"link": [], 3: 4}, "a topology has no '3'; its keys are"),
        ({"links": [{"between": ["a", "b"], 3: 4, "speed": 1}]}, "the link between a and b has no '3'"),
        ({"devices": {0: 3}}, "device '0' must be a mapping of kind and node"),
        (
            {"links": [{"between": "ab", "latency_us": 1, "gb_per_s": 1}]},
            "between must list two or more devices or switches",
        ),
        ({"links": [{"between": ["a", "b"], "speed": 1}]}, "the link between a and b has no 'speed'; its keys are gb_"),
        ({"links": [{"between": ["a", "b"], "latency_us": 1}]}, "the link between a and b lacks 'gb_per_s'; add it"),
        ({"links": [{"latency_us": 1, "gb_per_s": 1}]}, "a link lacks 'between'"),
        ({"links": [["a", "b"]]}, "a link must be a mapping of between"),
        ({"links": {"between": ["a", "b"]}}, "links must be a list, got {'between'"),
        (
            {"links": [{"between": ["a", "b"], "latency_us": "x", "gb_per_s": 1}]},
            "latency_us of the link between a and",
        ),
        ({"switches": "host"}, "switches must be a list, got 'host'"),
        ({"nodes": 2, "network": {"latency_us": 1, "gb_per_s": 1}}, "network lacks 'from'"),
        ({"nodes": 2, "network": {"from": "a", "latency_us": 1}}, "network lacks 'gb_per_s'; add it"),
        ({"kinds": {"core": {"memory_gib": 1, "tflops": 1}}}, "kind 'core' lacks 'gb_per_s'; add it"),
        ({"kinds": {"core": {"memory_gib": 1, "flops": 1}}}, "kind 'core' has no 'flops'; its keys are gb_per_s,"),
        ({"kinds": {"core": 1}}, "kind 'core' must be a mapping of names to values, got 1"),
        ({"kinds": ["core"]}, r"kinds must be a mapping of names to device kinds, got \['core'\]"),
        ({"devices": ["a", "b"]}, r"devices must be a mapping of names to kinds, got \['a', 'b'\]"),
        ({"devices": {"a": {"node": 1}, "b": "core"}}, "device 'a' lacks 'kind'; add it"),
        ({"devices": {"a": {"kind": "core", "node": "x"}, "b": "core"}}, "node of device 'a' must be a whole number"),
        ({"kinds": {"core": {"memory_gib": -1, "tflops": 1, "gb_per_s": 1}}}, "memory_gib of device kind 'core'"),
        ({"kinds": None}, "kinds must be a mapping of names to device kinds, got None"),
        ({"devices": {}}, "no devices"),
        ({"sum_us": -1}, "sum_us of topology 'pair' must be a number of at least 0, got -1"),
        ({"overlap": "no"}, "overlap of topology 'pair' must be true or false, got 'no'"),
    ],
)
def test_wrong_file_gets_one_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message) as raised:
        topology_from_dict({**PAIR, **change})
    assert "\n" not in str(raised.value)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps(topology_to_dict(topology_from_dict(PAIR))).replace("tflops", "flops"), encoding="utf-8")
    with pytest.raises(TopologyError, match=r"topology '.*own.yaml': kind 'core' has no 'flops'"):
        load_topology(file)


def test_unreadable_file_names_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="p100_cluster"):
        load_topology(tmp_path / "missing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [", encoding="utf-8")
    with pytest.raises(TopologyError, match="is not YAML"):
        load_topology(broken)
    broken.write_text("just text", encoding="utf-8")
    with pytest.raises(TopologyError, match="a topology must be a mapping"):
        load_topology(broken)


def test_what_is_no_mapping_is_named() -> None:
    with pytest.raises(TopologyError, match="must be a mapping with devices and links, got list"):
        topology_from_dict([])
