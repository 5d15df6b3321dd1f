"""What `nvidia-smi topo -m` tells about the links between GPUs."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from bow.device import links
from bow.device.links import parse_gpu_links, read_gpu_links

NODE = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV4\tSYS\tPIX\t0-15\t0\n"
    "GPU1\tNV4\t X \tPHB\tNODE\t0-15\t0\n"
    "GPU2\tSYS\tPHB\t X \tSYS\t16-31\t1\n"
    "NIC0\tPIX\tNODE\tSYS\t X \t\t\n"
    "\n"
    "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"
)


def test_nvlinks_and_ways_over_pcie_are_read_from_the_table() -> None:
    found = parse_gpu_links(NODE)
    assert found == {
        (0, 1): ("NVLINK", 4),
        (1, 0): ("NVLINK", 4),
        (0, 2): ("SYSTEM", 0),
        (2, 0): ("SYSTEM", 0),
        (1, 2): ("HOST", 0),
        (2, 1): ("HOST", 0),
    }


@pytest.mark.parametrize("text", ["", "\n\n", "nothing known", "GPU0\tX"])
def test_what_is_no_table_has_no_links(text: str) -> None:
    assert parse_gpu_links(text) == {}


def test_without_the_program_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(links.subprocess, "run", missing)
    assert read_gpu_links() == {}


def test_what_the_program_prints_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess(["nvidia-smi"], 0, stdout=NODE)
    monkeypatch.setattr(links.subprocess, "run", lambda *_, **__: done)
    assert read_gpu_links()[0, 1] == ("NVLINK", 4)
