"""The topology of a machine, read from what Linux tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bow.devices import available_cores
from bow.devices import topology as reader
from bow.devices.topology import HardwareThread, Topology, read_topology
from bow.errors import TopologyError
from tests.machines import manycore, server


def written(folder: Path, machine: Topology, level: int) -> tuple[Path, Path]:
    """What Linux would tell of a machine: its CPUs and its nodes."""
    cpus, nodes = folder / "cpu", folder / "node"
    for thread in machine.threads:
        cpu = cpus / f"cpu{thread.number}"
        own = machine.threads_of(thread.core)
        near = [each.number for each in machine.threads if each.cache == thread.cache]
        for index, (at, shared) in enumerate(((1, own), (level, near))):
            (cpu / f"cache/index{index}").mkdir(parents=True)
            (cpu / f"cache/index{index}/level").write_text(f"{at}\n")
            (cpu / f"cache/index{index}/shared_cpu_list").write_text(",".join(map(str, shared)) + "\n")
        (cpu / "topology").mkdir()
        (cpu / "topology/thread_siblings_list").write_text(",".join(map(str, own)) + "\n")
    for node in sorted({thread.node for thread in machine.threads}):
        (nodes / f"node{node}").mkdir(parents=True)
        of_node = [str(thread.number) for thread in machine.threads if thread.node == node]
        (nodes / f"node{node}/cpulist").write_text(",".join(of_node) + "\n")
    return cpus, nodes


@pytest.mark.parametrize(("machine", "level"), [(manycore(tiles=3), 2), (server(2, 4), 3)], ids=["tiles", "sockets"])
def test_what_linux_tells_is_read(
    machine: Topology, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "available_cores", lambda: tuple(thread.number for thread in machine.threads))
    read = read_topology(*written(tmp_path, machine, level))
    assert read.cores == machine.cores
    assert [thread.node for thread in read.threads] == [thread.node for thread in machine.threads]
    for core in machine.cores:
        assert read.threads_of(core) == machine.threads_of(core)
        assert read.sharing(core) == machine.sharing(core)


def test_what_linux_does_not_tell_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "available_cores", lambda: (0, 3))
    read = read_topology(tmp_path / "no", tmp_path / "none")
    assert read.cores == (0, 3)
    assert read.sharing(3) == (3,)
    assert {thread.node for thread in read.threads} == {0}


def test_this_machine_has_the_cores_that_the_process_may_use() -> None:
    read = read_topology()
    assert tuple(thread.number for thread in read.threads) == available_cores()
    assert sorted(number for core in read.cores for number in read.threads_of(core)) == sorted(available_cores())


def test_the_machine_of_the_papers_has_tiles_of_two_cores_with_four_threads_each() -> None:
    machine = manycore()
    assert (len(machine.cores), len(machine.threads)) == (68, 272)
    assert machine.threads_of(5) == (5, 73, 141, 209)
    assert machine.sharing(5) == (4, 5)


def test_sockets_of_a_server_have_caches_and_memory_of_their_own() -> None:
    machine = server(sockets=2, cores_per_socket=4)
    assert machine.sharing(6) == (4, 5, 6, 7)
    assert [thread.node for thread in machine.threads[3:5]] == [0, 1]
    assert machine.threads_of(4) == (4, 12)


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
