from pathlib import Path

import pytest
import torch

from bow.devices import memory
from bow.devices.memory import free_bytes, host_memory
from bow.testing import FakeDevice

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB of which 6 are free, and no container."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {8 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {6 * 2**20} kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    return tmp_path


def test_memory_without_a_container(machine: Path) -> None:
    assert host_memory() == (8 * GIB, 6 * GIB)
    assert free_bytes(torch.device("cpu")) == 6 * GIB


def test_memory_of_a_container_is_its_limit(machine: Path) -> None:
    (machine / "memory.max").write_text(f"{4 * GIB}\n")
    (machine / "memory.current").write_text(f"{1 * GIB}\n")
    assert host_memory() == (4 * GIB, 3 * GIB)


def test_files_that_are_only_cached_are_free(machine: Path) -> None:
    (machine / "memory.max").write_text(f"{4 * GIB}\n")
    (machine / "memory.current").write_text(f"{3 * GIB}\n")
    (machine / "memory.stat").write_text(f"anon {1 * GIB}\ninactive_file {2 * GIB}\nactive_file 5\n")
    assert host_memory() == (4 * GIB, 3 * GIB)


def test_the_older_kind_of_container(machine: Path) -> None:
    folder = machine / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{1 * GIB}\n")
    (folder / "memory.stat").write_text(f"cache 7\ntotal_inactive_file {GIB // 2}\n")
    assert host_memory() == (2 * GIB, 3 * GIB // 2)


def test_container_without_a_limit_has_all_memory(machine: Path) -> None:
    (machine / "memory.max").write_text("max\n")
    assert host_memory() == (8 * GIB, 6 * GIB)


def test_a_device_with_streams_says_itself_what_is_free() -> None:
    assert free_bytes(FakeDevice(memory_bytes=12345)) == 12345
