"""Which hardware threads share a core and a cache, read from what Linux tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bow.devices import available_cores, cores
from bow.devices.cores import HardwareThread, hardware_threads
from tests.machines import manycore, server


def write(folder: Path, machine: tuple[HardwareThread, ...], level: int) -> None:
    """What Linux would tell of a machine."""
    for thread in machine:
        cpu = folder / f"cpu{thread.number}"
        own = [each.number for each in machine if each.core == thread.core]
        near = [each.number for each in machine if each.cache == thread.cache]
        for index, (at, shared) in enumerate(((1, own), (level, near))):
            (cpu / f"cache/index{index}").mkdir(parents=True)
            (cpu / f"cache/index{index}/level").write_text(f"{at}\n")
            (cpu / f"cache/index{index}/shared_cpu_list").write_text(",".join(map(str, shared)) + "\n")
        (cpu / "topology").mkdir()
        (cpu / "topology/thread_siblings_list").write_text(",".join(map(str, own)) + "\n")


@pytest.mark.parametrize(("machine", "level"), [(manycore(tiles=3), 2), (server(2, 4), 3)], ids=["tiles", "sockets"])
def test_what_linux_tells_is_read(
    machine: tuple[HardwareThread, ...], level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: tuple(thread.number for thread in machine))
    monkeypatch.setattr(cores, "_TOPOLOGY", tmp_path)
    write(tmp_path, machine, level)
    assert hardware_threads() == machine


def test_what_linux_does_not_tell_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: (0, 3))
    monkeypatch.setattr(cores, "_TOPOLOGY", tmp_path / "no")
    assert hardware_threads() == (HardwareThread(0, 0, 0), HardwareThread(3, 3, 3))


def test_this_machine_has_the_threads_that_the_process_may_use() -> None:
    assert tuple(thread.number for thread in hardware_threads()) == available_cores()
