"""Static mapping by Scotch: balanced loads, little communication, and nothing about when anything runs.

The programs `amk_grf` and `scotch_gmap` of Scotch are called; nothing of it is linked.
"""

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bow.errors import MissingDependencyError, RuntimeUnavailableError
from bow.planning.placement.evaluation import SimulatedEvaluator
from bow.planning.placement.groups import Devices
from bow.planning.placement.loads import group_times_ns, loads, speeds, traffic
from bow.planning.problem.device_topology import TYPICAL_BYTES, DeviceTopology

GMAP = ("scotch_gmap", "gmap")
ARCHITECTURE = ("amk_grf", "scotch_amk_grf")
"""What distributions call the programs."""

MOST = 10_000
"""The largest load and the largest weight of an edge: sums over all groups must stay whole numbers of 32 bits."""

DISTANCE, SPEED = 10, 1000
"""What the shortest way between two devices, and the speed of all together, are as whole numbers."""

TIMEOUT_S = 60.0


def scotch(evaluator: SimulatedEvaluator, devices: Sequence[int] | None = None) -> Devices:
    """Map groups to devices by Scotch's default strategy.

    The graph's vertices are groups, as heavy as the time that they take; its edges are what crosses between them, both
    ways. The architecture's vertices are devices, weighted by their speed; its edges are as long as a transfer
    takes. Scotch balances the loads by the speeds, up to 5 %, and keeps the edges short.

    References:
        Pellegrini, Roman: Experimental analysis of the dual recursive bipartitioning algorithm for static mapping,
        1996. Mirhoseini et al., 2017, section 4.2.
    """
    chosen = list(range(evaluator.num_devices) if devices is None else devices)
    if len(chosen) == 1 or len(evaluator.groups) == 1:
        return evaluator.legal((max(chosen),) * len(evaluator.groups))
    times = group_times_ns(evaluator)
    graph = source_graph(loads(times, chosen, MOST), traffic(evaluator, MOST))
    target = architecture(evaluator.problem.topology, chosen, speeds([times[device] for device in chosen]))
    return evaluator.legal(tuple(chosen[number] for number in mapped(graph, target)))


def mincut(evaluator: SimulatedEvaluator) -> Devices:
    """Map groups by Scotch to all devices but processors.

    References:
        Mirhoseini et al., 2017, section 4.2.
    """
    return scotch(evaluator, evaluator.accelerators)


def source_graph(loads: Sequence[int], edges: Mapping[tuple[int, int], int]) -> str:
    """A graph in Scotch's format: version, sizes, numbering from 0 with weights of both sorts, a line a vertex.

    Example:
        >>> print(source_graph([5, 7], {(0, 1): 3}), end="")
        0
        2 2
        0 011
        5 1 3 1
        7 1 3 0
    """
    ways: list[list[int]] = [[] for _ in loads]
    for (a, b), weight in sorted(edges.items()):
        ways[a] += [weight, b]
        ways[b] += [weight, a]
    lines = [[load, len(way) // 2, *way] for load, way in zip(loads, ways, strict=True)]
    header = ["0", f"{len(loads)} {2 * len(edges)}", "0 011"]
    return "\n".join([*header, *(" ".join(map(str, line)) for line in lines)]) + "\n"


def architecture(topology: DeviceTopology, devices: Sequence[int], speeds: Sequence[float]) -> str:
    """Devices as a graph in Scotch's format, every two joined by an edge as long as a transfer takes."""
    pairs = list(itertools.combinations(range(len(devices)), 2))
    times = [
        topology.transfer_ns(TYPICAL_BYTES, devices[a], devices[b])
        + topology.transfer_ns(TYPICAL_BYTES, devices[b], devices[a])
        for a, b in pairs
    ]
    shortest = max(1, min(times))
    lengths = [max(1, round(DISTANCE * time / shortest)) for time in times]
    return source_graph([max(1, round(SPEED * speed)) for speed in speeds], dict(zip(pairs, lengths, strict=True)))


def mapped(graph: str, target: str) -> list[int]:
    """What Scotch maps each vertex of a graph to."""
    gmap, architecture = _program(GMAP), _program(ARCHITECTURE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source.grf").write_text(graph)
        (folder / "target.grf").write_text(target)
        _run(folder, architecture, "target.grf", "target.tgt")
        _run(folder, gmap, "source.grf", "target.tgt", "map.txt")
        count, *pairs = (folder / "map.txt").read_text().split()
    found = dict(zip(map(int, pairs[::2]), map(int, pairs[1::2]), strict=True))
    return [found[number] for number in range(int(count))]


def _program(names: Sequence[str]) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise MissingDependencyError(
            f"static mapping needs Scotch's program {names[0]}, which is not installed; apt-get install scotch"
        )
    return found


def _run(folder: Path, program: str, *arguments: str) -> None:
    try:
        done = subprocess.run(
            [program, *arguments], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeUnavailableError(
            f"Scotch's {Path(program).name} did not run ({error}); install it anew"
        ) from error
    said = (done.stderr or done.stdout).strip().replace("\n", "; ")
    if done.returncode or "ERROR" in said:
        raise RuntimeUnavailableError(
            f"Scotch's {Path(program).name} failed ({said or f'exit status {done.returncode}'}); install it anew"
        )
