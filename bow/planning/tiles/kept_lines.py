"""What messages between the processes of this machine take in use, kept on disk: measuring it takes a while."""

import contextlib
import hashlib
import itertools
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from bow.compiling import cache_folder
from bow.devices import available_cores, processor
from bow.devices.links import gpu_uuid
from bow.errors import BowError
from bow.files import write_whole
from bow.planning.tiles.exchanges import SHAPES, forget_layers, lines_in_use
from bow.planning.tiles.links import Lines
from bow.planning.tiles.measuring import bow_version
from bow.planning.tiles.team import Team

TURNS = 3
"""In which messages are timed where nobody asks for a plan: about a third of what a plan takes for it."""

PER_BYTE_NS = (1e-6, 1e6)
"""From 1 KB/s to 1 PB/s: no link is faster or slower, and what is far beyond has no bandwidth as a number."""


@dataclass(frozen=True)
class Members:
    """What all processes of a team know of its devices.

    Attributes:
        nodes: by device: the number of the first one on the same machine.
        makes: by device: the name of the GPU, or the processor and how many cores there are.
        gpus: by device: its UUID; none: they are cores.
    """

    nodes: tuple[int, ...]
    makes: tuple[str, ...]
    gpus: tuple[str, ...] = ()

    @classmethod
    def of(cls, team: Team) -> "Members":
        """Those of a team; all of its processes call this."""
        if team.device.type == "cuda":
            make, gpu = torch.cuda.get_device_name(team.device), gpu_uuid(team.device)
        else:
            make, gpu = f"{processor()}, {len(available_cores())} cores", ""
        hosts, makes, gpus = zip(*team.everyone((platform.node(), make, gpu)), strict=True)
        return cls(tuple(map(hosts.index, hosts)), makes, gpus if all(gpus) else ())


def lines_here(
    team: Team, members: Members, *, shapes: Sequence[tuple[int, int]] = SHAPES, turns: int = TURNS
) -> tuple[Lines, float]:
    """What `lines_in_use` gives: as it was kept here for so many devices, or else measured, and kept.

    All processes of the team call this; they get the same. One alone sends no messages: nothing is measured or kept.
    """
    if team.size == 1:
        return {}, 0.0
    path = _file(members)
    kept = team.everyone(None if team.number else _load(path, team.size))[0]
    if kept is not None:
        return kept
    with torch.random.fork_rng(devices=[]):  # a training goes on as if nothing had been measured
        lines, sum_us = lines_in_use(team, shapes=shapes, turns=turns)
    forget_layers()
    if not team.number:
        _keep(path, lines, sum_us)
    return lines, sum_us


def keep_lines(team: Team, lines: Lines, sum_us: float) -> None:
    """Keep what `lines_in_use` has given, in the place of what is kept; all processes of the team call this."""
    path = _file(Members.of(team))
    if not team.number:
        _keep(path, lines, sum_us)


def _keep(path: Path | None, lines: Lines, sum_us: float) -> None:
    if path is None or not lines:
        return
    text = json.dumps({"pairs": [[*pair, *line] for pair, line in lines.items()], "sum_us": sum_us})
    with contextlib.suppress(OSError):  # without a folder to write to it is measured again
        write_whole(path, text)


def _file(members: Members) -> Path | None:
    """By devices, which of them share a machine, PyTorch and bow; None: there is no place for it."""
    described = [*astuple(members), torch.__version__, bow_version()]
    name = hashlib.sha256(repr(described).encode()).hexdigest()[:16]
    with contextlib.suppress(BowError):
        return cache_folder() / "links" / f"{name}.json"
    return None


def _load(path: Path | None, size: int) -> tuple[Lines, float] | None:
    """What a file has for so many devices; None: nothing that can be read, or nothing that can be measured."""
    if path is None:
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        pairs = [(a, b) for a, b, _, _ in read["pairs"]]
        lines = [(float(latency), float(per_byte)) for _, _, latency, per_byte in read["pairs"]]
        sum_us = float(read["sum_us"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if pairs != list(itertools.combinations(range(size), 2)) or not 0 <= sum_us < math.inf:
        return None
    fastest, slowest = PER_BYTE_NS
    if not all(0 <= latency < math.inf and fastest <= per_byte <= slowest for latency, per_byte in lines):
        return None
    return dict(zip(pairs, lines, strict=True)), sum_us
