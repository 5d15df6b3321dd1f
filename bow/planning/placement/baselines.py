"""Placements without search: the expert's, and partitions by METIS and Scotch."""

import itertools
import random
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bow.errors import MissingDependencyError, RuntimeUnavailableError
from bow.planning.placement.groups import Devices, SimulatedEvaluator
from bow.planning.problem.box import whole
from bow.planning.problem.device_topology import TYPICAL_BYTES, DeviceTopology
from bow.planning.search.baselines import RECURRENT


def group_times_ns(evaluator: SimulatedEvaluator) -> list[list[int]]:
    """By device and group: time of forward and backward passes, without contention."""
    # Updates are excluded: a layer has one, however many of its steps are on the device.
    graph, costs = evaluator.problem.graph, evaluator.problem.costs
    boxes = [whole(graph.output_shape(operator)) for operator in graph.operators]
    times: list[list[int]] = []
    for device in range(evaluator.num_devices):
        of_group = [0] * len(evaluator.groups)
        for number, (group, box) in enumerate(zip(evaluator.groups.of, boxes, strict=True)):
            of_group[group] += costs.tile_time(number, box, device).total_ns
        times.append(of_group)
    return times


def speeds(times: Sequence[Sequence[int]]) -> list[float]:
    """By device: its share of the devices' total speed, over all groups."""
    rates = [1 / max(1, sum(of_device)) for of_device in times]
    return [rate / sum(rates) for rate in rates]


def loads(times: Sequence[Sequence[int]], devices: Sequence[int], most: int) -> list[int]:
    """By group: its work as a whole number from 1 to `most`."""
    # Measured as time on the fastest of the devices.
    fastest = min(devices, key=lambda device: sum(times[device]))
    largest = max(1, *times[fastest])
    return [max(1, round(most * time / largest)) for time in times[fastest]]


def traffic(evaluator: SimulatedEvaluator, most: int) -> dict[tuple[int, int], int]:
    """By pair of groups, smaller number first: bytes in both directions, scaled to whole numbers from 1 to `most`."""
    found: dict[tuple[int, int], int] = {}
    for flow in evaluator.groups.flows:
        pair = min(flow.maker, flow.reader), max(flow.maker, flow.reader)
        found[pair] = found.get(pair, 0) + flow.num_bytes
    largest = max(1, *found.values()) if found else 1
    return {pair: max(1, round(most * num_bytes / largest)) for pair, num_bytes in found.items()}


LAYERS = frozenset({"conv1d", "conv2d", "conv3d", "linear"})
"""Kinds of operators counted as layers when a network is cut into contiguous parts."""


def expert(evaluator: SimulatedEvaluator) -> Devices:
    is_recurrent = any(evaluator.groups.with_kinds(RECURRENT))
    return (layer_per_device if is_recurrent else contiguous_parts)(evaluator)


def layer_per_device(evaluator: SimulatedEvaluator) -> Devices:
    """Place each LSTM layer on its own accelerator, round-robin if there are too few."""
    # Wu et al.: Google's neural machine translation system, 2016. An embedding is placed with the layer that reads it;
    # attention, softmax and the rest with the highest layer.
    groups, devices = evaluator.groups, evaluator.accelerators
    cells = [number for number, held in enumerate(groups.with_kinds(RECURRENT)) if held]
    in_order = sorted(cells, key=lambda number: groups.groups[number].operators)
    layers = list(dict.fromkeys(groups.groups[number].layer for number in in_order))
    place = {layer: devices[number % len(devices)] for number, layer in enumerate(layers)}
    placed = {number: place[groups.groups[number].layer] for number in cells}
    read_by: dict[str, int] = {}
    for flow in groups.flows:
        if flow.reader in placed:
            read_by.setdefault(groups.groups[flow.maker].layer, placed[flow.reader])
    embedding = groups.with_kinds({"embedding"})
    highest = place[layers[-1]]
    return tuple(
        placed.get(number, read_by.get(group.layer, highest) if embedding[number] else highest)
        for number, group in enumerate(groups.groups)
    )


def contiguous_parts(evaluator: SimulatedEvaluator) -> Devices:
    """Cut the execution order into one part per accelerator, with about equally many layers each."""
    groups, devices = evaluator.groups, evaluator.accelerators
    kinds = [operator.kind for operator in groups.graph.operators]
    layers = [sum(kinds[number] in LAYERS for number in group.operators) for group in groups.groups]
    total, passed, placed = max(1, sum(layers)), 0, [0] * len(groups)
    for number in groups.order:
        middle = 2 * passed + layers[number]
        placed[number] = devices[min(len(devices) - 1, len(devices) * middle // (2 * total))]
        passed += layers[number]
    return tuple(placed)


MAX_WEIGHT = 10_000  # largest load and edge weight: METIS adds them up in 32-bit integers


def metis(evaluator: SimulatedEvaluator, seed: int = 0) -> Devices:
    """Partition the groups over accelerators, loads proportional to their speeds, with minimum edge cut."""
    # Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs, 1995.
    chosen = evaluator.accelerators
    if len(chosen) == 1:
        return evaluator.all_on(chosen[0])
    times = group_times_ns(evaluator)
    adjacency: list[dict[int, int]] = [{} for _ in range(len(evaluator.groups))]
    for (a, b), weight in traffic(evaluator, MAX_WEIGHT).items():
        adjacency[a][b] = adjacency[b][a] = weight
    try:
        import pymetis
    except ImportError as error:
        raise MissingDependencyError(
            "method=metis needs the package pymetis; pip install 'bow-trainer[partition]'"
        ) from error
    found = pymetis.part_graph(
        len(chosen),
        pymetis.CSRAdjacency(
            [*itertools.accumulate(map(len, adjacency), initial=0)],
            [other for neighbours in adjacency for other in neighbours],
        ),
        vweights=loads(times, chosen, MAX_WEIGHT),
        eweights=[weight for neighbours in adjacency for weight in neighbours.values()],
        tpwgts=speeds([times[device] for device in chosen]),
        options=pymetis.Options(seed=random.Random(seed).randrange(2**31)),
    )
    return tuple(chosen[part] for part in found.vertex_part)


GMAP = ("scotch_gmap", "gmap")
ARCHITECTURE = ("amk_grf", "scotch_amk_grf")  # names of the programs in different distributions
DISTANCE, SPEED = 10, 1000
"""Integer scales: of the shortest distance between two devices, and of the devices' total speed."""

TIMEOUT_S = 60.0


def scotch(evaluator: SimulatedEvaluator, devices: Sequence[int] | None = None) -> Devices:
    """Map groups to devices by Scotch's default strategy."""
    # Pellegrini, Roman: Experimental analysis of the dual recursive bipartitioning algorithm, 1996. Balances loads by
    # speed, up to 5 %, and minimises weighted edge lengths.
    chosen = list(range(evaluator.num_devices) if devices is None else devices)
    if len(chosen) == 1 or len(evaluator.groups) == 1:
        return evaluator.all_on(max(chosen))
    times = group_times_ns(evaluator)
    graph = source_graph(loads(times, chosen, MAX_WEIGHT), traffic(evaluator, MAX_WEIGHT))
    target = architecture(evaluator.problem.topology, chosen, speeds([times[device] for device in chosen]))
    return tuple(chosen[number] for number in run_scotch(graph, target))


def source_graph(loads: Sequence[int], edges: Mapping[tuple[int, int], int]) -> str:
    """Write a graph in Scotch's format: version, sizes, base 0 with vertex and edge weights, one line per vertex."""
    adjacency: list[list[int]] = [[] for _ in loads]
    for (a, b), weight in sorted(edges.items()):
        adjacency[a] += [weight, b]
        adjacency[b] += [weight, a]
    lines = [[load, len(neighbours) // 2, *neighbours] for load, neighbours in zip(loads, adjacency, strict=True)]
    header = ["0", f"{len(loads)} {2 * len(edges)}", "0 011"]
    return "\n".join([*header, *(" ".join(map(str, line)) for line in lines)]) + "\n"


def architecture(topology: DeviceTopology, devices: Sequence[int], speeds: Sequence[float]) -> str:
    """Write devices as a complete graph in Scotch's format; edge lengths are transfer times."""
    pairs = list(itertools.combinations(range(len(devices)), 2))
    times = [
        topology.transfer_ns(TYPICAL_BYTES, devices[a], devices[b])
        + topology.transfer_ns(TYPICAL_BYTES, devices[b], devices[a])
        for a, b in pairs
    ]
    shortest = max(1, min(times))
    lengths = [max(1, round(DISTANCE * time / shortest)) for time in times]
    return source_graph([max(1, round(SPEED * speed)) for speed in speeds], dict(zip(pairs, lengths, strict=True)))


def run_scotch(graph: str, target: str) -> list[int]:
    """Run Scotch; return the target of each vertex."""
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
        raise RuntimeUnavailableError(f"Scotch's {Path(program).name} did not run ({error}); reinstall it") from error
    said = (done.stderr or done.stdout).strip().replace("\n", "; ")
    if done.returncode or "ERROR" in said:
        raise RuntimeUnavailableError(
            f"Scotch's {Path(program).name} failed ({said or f'exit status {done.returncode}'}); reinstall it"
        )
