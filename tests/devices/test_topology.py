"""The topology of a machine, read from what Linux tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bow.devices import available_cores
from bow.devices import topology as reader
from bow.devices.topology import read_topology
from bow.schedule import Topology, manycore, server


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
    for node in machine.nodes:
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
    assert read.nodes == machine.nodes
    for core in machine.cores:
        assert read.threads_of(core) == machine.threads_of(core)
        assert read.sharing(core) == machine.sharing(core)
        assert read.node_of(core) == machine.node_of(core)


def test_what_linux_does_not_tell_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "available_cores", lambda: (0, 3))
    read = read_topology(tmp_path / "no", tmp_path / "none")
    assert read.cores == (0, 3)
    assert read.sharing(3) == (3,)
    assert read.nodes == (0,)


def test_this_machine_has_the_cores_that_the_process_may_use() -> None:
    read = read_topology()
    assert tuple(thread.number for thread in read.threads) == available_cores()
    assert sorted(number for core in read.cores for number in read.threads_of(core)) == sorted(available_cores())
