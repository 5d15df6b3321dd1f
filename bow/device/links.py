"""Reads how the GPUs of this machine are connected, as `nvidia-smi topo -m` tells."""

import re
import subprocess
from collections.abc import Mapping
from typing import Literal, TypeAlias

Connection: TypeAlias = Literal["NVLINK", "SWITCH", "HOST", "NODE", "SYSTEM"]
"""By NVLinks, within a PCIe switch, over the bridge of a processor, within a NUMA node, or between processors."""

_CONNECTIONS: Mapping[str, Connection] = {
    "PIX": "SWITCH",
    "PXB": "SWITCH",
    "PHB": "HOST",
    "NODE": "NODE",
    "SYS": "SYSTEM",
}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

PATIENCE_S = 20


def read_gpu_links() -> dict[tuple[int, int], tuple[Connection, int]]:
    """By pair of GPUs: how they are connected, and by how many NVLinks; empty where the system does not tell."""
    try:
        told = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_gpu_links(told.stdout)


def parse_gpu_links(text: str) -> dict[tuple[int, int], tuple[Connection, int]]:
    r"""What `nvidia-smi topo -m` prints, by pair of GPUs.

    Args:
        text: a table with a row and a column for each GPU.

    Example:
        >>> parse_gpu_links("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-95\nGPU1\tNV18\t X \t0-95\n")
        {(0, 1): ('NVLINK', 18), (1, 0): ('NVLINK', 18)}
    """
    lines = [_ESCAPES.sub("", line).split("\t") for line in text.splitlines() if line.strip()]
    columns = [cell.strip() for cell in lines[0]] if lines else []
    links: dict[tuple[int, int], tuple[Connection, int]] = {}
    for cells in lines[1:]:
        row = _gpu(cells[0])
        for name, cell in zip(columns[1:], cells[1:], strict=False):
            column, found = _gpu(name), _connection(cell.strip())
            if row is not None and column is not None and found is not None:
                links[row, column] = found
    return links


def _gpu(name: str) -> int | None:
    match = re.fullmatch(r"GPU(\d+)", name.strip())
    return None if match is None else int(match[1])


def _connection(cell: str) -> tuple[Connection, int] | None:
    match = re.fullmatch(r"NV(\d+)", cell)
    if match is not None:
        return "NVLINK", int(match[1])
    return (_CONNECTIONS[cell], 0) if cell in _CONNECTIONS else None
