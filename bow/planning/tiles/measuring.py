"""How long tiles take on this device: measured where they run, in whole steps."""

from __future__ import annotations

import hashlib
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from bow.compiling import cache_folder
from bow.devices import processor
from bow.errors import BowError, SettingError, disk_reason
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.partition import Partition, Split, tiles_of
from bow.planning.rules import RULES
from bow.planning.rules.rule import Rules
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.costs import tile_key
from bow.planning.simulator.measured_costs import TileTime, TileTimes, scaled
from bow.planning.tiles.captured import CapturedStep
from bow.planning.tiles.runtime import TileRuntime
from bow.planning.tiles.team import Team
from bow.planning.tiles.updating import OptimizerFactory
from bow.runtime.build import machine
from bow.schedule import Span

_Spans: TypeAlias = dict[tuple[str, str], list[Span]]

Tell: TypeAlias = Callable[[int, int], None]
"""Is told how many tiles are measured, and of how many."""

REPEATS = 5

WARM_UP = 2


def measure_tiles(
    captured: CapturedStep,
    model: nn.Module,
    batch: Any,
    optimizer: OptimizerFactory,
    num_devices: int,
    *,
    device: torch.device | None = None,
    known: TileTimes | None = None,
    even: bool = False,
    repeats: int = REPEATS,
    rules: Rules = RULES,
    tell: Tell | None = None,
) -> TileTimes:
    """Measure every tile that a strategy for so many devices may have, once for each operator and shape.

    Whole steps are run by the tile runtime on one device, one after the other with all operators split in another way.
    What it takes to cut and put together what a tile reads counts as the tile's, and so does what the runtime itself
    takes between two tiles.
    """
    times = TileTimes() if known is None else TileTimes(dict(known.tiles), dict(known.updates))
    graph, team = captured.graph, Team(device or torch.device("cpu"), is_alone=True)
    ways = [(splits, _keys(graph, rules, splits)) for splits in _ways(graph, rules, num_devices, even)]
    wanted = {key for _, keys in ways for of in keys for key in of}
    for splits, keys in ways:
        if tell is not None:
            tell(len(wanted & times.tiles.keys()), len(wanted))
        if graph.hash in times.updates and all(key in times.tiles for of in keys for key in of):
            continue
        runtime = TileRuntime(captured, Partition(graph.hash, splits), model, optimizer, team, rules=rules)
        steps = list(_steps(runtime, batch, repeats))
        found: dict[str, list[TileTime]] = defaultdict(list)
        wholes = []
        for spans in steps:
            wholes.append(0)
            for operator, of in zip(graph.operators, keys, strict=True):
                for key, took in zip(of, _times_of(operator, len(of), spans), strict=True):
                    found[key].append(took)
                    wholes[-1] += took.total_ns
        # What interrupts a machine now and then is in every step, and in no tile's median.
        medians = {key: _median(of) for key, of in found.items()}
        parts = sum(medians[key].total_ns for of in keys for key in of)
        medians = scaled(medians, statistics.median(wholes) / max(parts, 1))
        times.tiles.update({key: time for key, time in medians.items() if key not in times.tiles})
        updates = [_update_ns(spans) for spans in steps]
        times.updates.setdefault(graph.hash, statistics.median(updates) / max(_trained_bytes(graph), 1))
    if tell is not None:
        tell(len(wanted), len(wanted))
    return times


def kept_times(
    captured: CapturedStep,
    model: nn.Module,
    batch: Any,
    optimizer: OptimizerFactory,
    num_devices: int,
    *,
    device: torch.device | None = None,
    even: bool = False,
    rules: Rules = RULES,
    tell: Tell | None = None,
) -> TileTimes:
    """The same as `measure_tiles`, of which only that is measured which was not measured on this hardware before."""
    path = times_file(device or torch.device("cpu"), type(optimizer(model.parameters())).__name__)
    known = load_times(path)
    times = measure_tiles(
        captured, model, batch, optimizer, num_devices, device=device, known=known, even=even, rules=rules, tell=tell
    )
    if times != known:
        try:
            times.save(path)
        except OSError as error:
            raise SettingError(
                f"what was measured cannot be kept in {path.parent} ({disk_reason(error)}); set BOW_CACHE to a "
                "folder that can be written to"
            ) from error
    return times


def times_file(device: torch.device, optimizer: str) -> Path:
    """Where the times of tiles are kept, of all graphs: by hardware, number of threads, PyTorch, bow and optimizer."""
    hardware = machine() if device.type == "cpu" else torch.cuda.get_device_name(device)
    described = [processor(), hardware, torch.get_num_threads(), torch.__version__, bow_version(), optimizer]
    name = hashlib.sha256(repr(described).encode()).hexdigest()[:16]
    return cache_folder() / "tiles" / f"{name}.json"


def bow_version() -> str:
    """Of bow; importing it here would turn the layers round."""
    return str(sys.modules["bow"].__version__)


def load_times(path: Path) -> TileTimes | None:
    """The times that are kept in a file; None: there are none that can be read."""
    try:
        return TileTimes.from_json(path.read_text(encoding="utf-8"))
    except (OSError, BowError):
        return None


def _trained_bytes(graph: OperatorGraph) -> int:
    return sum(math.prod(each.shape) * each.itemsize for each in graph.weights.values() if each.differentiable)


def _ways(graph: OperatorGraph, rules: Rules, num_devices: int, even: bool) -> Iterator[tuple[Split, ...]]:
    """Strategies on one device in which every operator has each of its degrees once."""
    space = SplitSpace(graph, rules, 1, devices="every", max_tiles=num_devices, even=even)
    ways = [list(space.splits(operator)) for operator in range(space.num_operators)]
    for turn in range(max(map(len, ways))):
        yield tuple(of[min(turn, len(of) - 1)] for of in ways)


def _keys(graph: OperatorGraph, rules: Rules, splits: Sequence[Split]) -> list[list[str]]:
    """By operator: the keys of its tiles."""
    pairs = zip(graph.operators, splits, strict=True)
    return [[tile_key(graph, rules, each, box) for box in tiles_of(graph, each, split)] for each, split in pairs]


def _steps(runtime: TileRuntime, batch: Any, repeats: int) -> Iterator[_Spans]:
    """By category and name, what ran in each of several steps, with the time since what ran before added."""
    for step in range(WARM_UP + repeats):
        runtime.record(step >= WARM_UP)
        end = time.monotonic_ns()
        runtime.step(batch, step)
        spans: _Spans = defaultdict(list)
        for span in runtime.timeline().spans:
            spans[span.category, span.name].append(replace(span, start_ns=end))
            end = span.end_ns
        if step >= WARM_UP:
            yield spans


def _times_of(operator: PlanOperator, count: int, spans: _Spans) -> list[TileTime]:
    """By tile of an operator, in one step.

    Where tiles sum something in the middle, all begin together and each has its share of it; their backward passes come
    first for what is behind the sum, then for what is before it.
    """
    forward = [span.duration_ns for span in spans["forward", operator.name]]
    backward = [span.duration_ns for span in spans["backward", operator.name]]
    together, own = sum(forward[:-count]), forward[-count:]
    return [TileTime(own[tile] + together // count, sum(backward[tile::count])) for tile in range(count)]


def _update_ns(spans: _Spans) -> int:
    """What a step spends on all weights behind the backward passes: to put their gradients together, and to update."""
    of_both = [*spans["reduction", "gradients"], *spans["update", "all"]]
    return sum(span.duration_ns for span in of_both)


def _median(times: Sequence[TileTime]) -> TileTime:
    return TileTime(
        round(statistics.median(each.forward_ns for each in times)),
        round(statistics.median(each.backward_ns for each in times)),
    )
