"""What `nvidia-smi topo -m` tells about the links between GPUs."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from bow.devices import links
from bow.devices.links import links_between, parse_gpu_links, read_gpu_links

NODE = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV4\tSYS\tPIX\t0-15\t0\n"
    "GPU1\tNV4\t X \tPHB\tNODE\t0-15\t0\n"
    "GPU2\tSYS\tPHB\t X \tSYS\t16-31\t1\n"
    "NIC0\tPIX\tNODE\tSYS\t X \t\t\n"
    "\n"
    "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"
)

LISTING = (
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0a-00)\n"
    "  MIG 1g.10gb     Device  0: (UUID: MIG-77-01)\n"
    "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1b-01)\n"
    "GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-2c-02)\n"
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


def test_only_gpus_that_a_process_sees_have_links_in_its_order() -> None:
    assert links_between(["2C-02", "0a-00", "1b-01"], LISTING, NODE) == {
        (1, 2): ("NVLINK", 4),
        (2, 1): ("NVLINK", 4),
        (1, 0): ("SYSTEM", 0),
        (0, 1): ("SYSTEM", 0),
        (2, 0): ("HOST", 0),
        (0, 2): ("HOST", 0),
    }
    assert links_between(["GPU-2c-02", "GPU-1b-01"], LISTING, NODE) == {(0, 1): ("HOST", 0), (1, 0): ("HOST", 0)}
    assert links_between(["1b-01"], LISTING, NODE) == {}


@pytest.mark.parametrize("uuids", [["MIG-77-01", "MIG-77-02"], ["77-01", "0a-00"], []])
def test_parts_of_gpus_and_unknown_ones_have_no_links(uuids: list[str]) -> None:
    assert links_between(uuids, LISTING, NODE) == {}


def test_without_the_program_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(links.subprocess, "run", missing)
    assert read_gpu_links(["0a-00", "1b-01"]) == {}


def test_what_the_program_prints_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout={"-L": LISTING, "-m": NODE}[command[-1]])

    monkeypatch.setattr(links.subprocess, "run", run)
    assert read_gpu_links(["1b-01", "2c-02"])[0, 1] == ("HOST", 0)
