"""Read the connections between this machine's GPUs from `nvidia-smi topo -m`."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch

# Over NVLinks, a PCIe switch, a PCIe host bridge, a NUMA node, or between processors.
Connection: TypeAlias = Literal["NVLINK", "SWITCH", "HOST", "NODE", "SYSTEM"]

_CONNECTIONS: Mapping[str, Connection] = {
    "PIX": "SWITCH",
    "PXB": "SWITCH",
    "PHB": "HOST",
    "NODE": "NODE",
    "SYS": "SYSTEM",
}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

_LISTED = re.compile(r"^GPU (\d+): .*\(UUID: (GPU-[0-9A-Fa-f-]+)\)", re.MULTILINE)

PATIENCE_S = 20


def gpu_uuid(device: torch.device | int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def read_gpu_links(uuids: Sequence[str]) -> dict[tuple[int, int], tuple[Connection, int]]:
    """Return connection and number of NVLinks by pair of GPUs; empty if nvidia-smi is not available."""
    try:
        listing, table = _ask("-L"), _ask("topo", "-m")
    except (OSError, subprocess.SubprocessError):
        return {}
    return links_between(uuids, listing, table)


def links_between(uuids: Sequence[str], listing: str, table: str) -> dict[tuple[int, int], tuple[Connection, int]]:
    """Return the links between the given GPUs, by pair of positions; a MIG partition has none."""
    # `nvidia-smi` numbers all GPUs of the machine, PyTorch those visible to the process, in another order.
    numbers = {_plain(uuid): int(number) for number, uuid in _LISTED.findall(listing)}
    places = {numbers[plain]: place for place, plain in enumerate(map(_plain, uuids)) if plain in numbers}
    return {
        (places[one], places[other]): found
        for (one, other), found in parse_gpu_links(table).items()
        if one in places and other in places
    }


def parse_gpu_links(text: str) -> dict[tuple[int, int], tuple[Connection, int]]:
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


def _ask(*arguments: str) -> str:
    command = ["nvidia-smi", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout


def _plain(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _gpu(name: str) -> int | None:
    match = re.fullmatch(r"GPU(\d+)", name.strip())
    return None if match is None else int(match[1])


def _connection(cell: str) -> tuple[Connection, int] | None:
    match = re.fullmatch(r"NV(\d+)", cell)
    if match is not None:
        return "NVLINK", int(match[1])
    return (_CONNECTIONS[cell], 0) if cell in _CONNECTIONS else None
