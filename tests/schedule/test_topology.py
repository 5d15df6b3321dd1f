"""Topologies as plain data."""

from __future__ import annotations

import pytest

from bow.errors import TopologyError
from bow.schedule import HardwareThread, Topology, manycore, server


def test_the_machine_of_the_papers_has_tiles_of_two_cores_with_four_threads_each() -> None:
    machine = manycore()
    assert (len(machine.cores), len(machine.threads), machine.nodes) == (68, 272, (0,))
    assert machine.threads_of(5) == (5, 73, 141, 209)
    assert machine.sharing(5) == (4, 5)


def test_sockets_of_a_server_have_caches_and_memory_of_their_own() -> None:
    machine = server(sockets=2, cores_per_socket=4)
    assert machine.sharing(6) == (4, 5, 6, 7)
    assert (machine.node_of(3), machine.node_of(4)) == (0, 1)
    assert machine.threads_of(4) == (4, 12)


def test_neighbours_share_a_cache() -> None:
    threads = [HardwareThread(number, core=number, cache=number % 2, node=0) for number in range(4)]
    assert Topology(tuple(threads)).neighbours_first() == (0, 2, 1, 3)


def test_what_a_process_may_not_use_is_left_out() -> None:
    left = server(2, 2).restricted([1, 2, 5])
    assert left.cores == (1, 2)
    assert left.threads_of(1) == (1, 5)


def test_json_keeps_everything() -> None:
    machine = server(2, 3, 1)
    assert Topology.from_json(machine.to_json()) == machine


@pytest.mark.parametrize(
    ("threads", "message"),
    [
        ((), "at least 1 hardware thread"),
        ((HardwareThread(1, 0, 0, 0), HardwareThread(0, 0, 0, 0)), "in ascending order"),
        ((HardwareThread(0, 0, 0, 0), HardwareThread(1, 0, 1, 0)), "core 0 lies in two caches"),
        ((HardwareThread(0, 0, 0, 0), HardwareThread(1, 0, 0, 1)), "core 0 lies in two nodes"),
    ],
    ids=["none", "order", "caches", "nodes"],
)
def test_a_topology_that_no_machine_has_is_refused(threads: tuple[HardwareThread, ...], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Topology(threads)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "bow topology", "version": 1, "threads": [1]}'])
def test_what_is_no_topology_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(TopologyError, match=r"^the topology is damaged .*write it again$"):
        Topology.from_json(text)


def test_another_version_is_not_called_damaged() -> None:
    with pytest.raises(TopologyError, match=r'^the text is not a "bow topology" of version 1; write it again$'):
        Topology.from_json('{"format": "bow topology", "version": 2}')
