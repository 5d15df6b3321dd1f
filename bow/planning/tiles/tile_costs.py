"""Times of tiles on this machine, measured in whole steps and cached on disk, and the step that they predict."""

from __future__ import annotations

import contextlib
import functools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from bow.compiling import cache_folder
from bow.devices import available_cores, processor
from bow.devices.cores import warn_if_busy
from bow.errors import SettingError, disk_reason
from bow.planning.problem.device_topology import Device, DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator
from bow.planning.problem.partition import Partition, Split, tiles_of
from bow.planning.rules import RULES
from bow.planning.rules.rule import Rules
from bow.planning.search.problem import Problem
from bow.planning.search.search_space import SplitSpace
from bow.planning.simulator.costs import MeasuredCosts, TileTime, TileTimes, tile_key
from bow.planning.tiles.capture import CapturedOperators
from bow.planning.tiles.communication import ProcessGroup
from bow.planning.tiles.link_benchmark import DeviceInventory, Measurements, cached_busy_links, measured_topology
from bow.planning.tiles.machine import core_kind, device_kind, pinned_to, topology_with_assumed_links
from bow.planning.tiles.runtime import TileRuntime
from bow.replicas import OptimizerFactory
from bow.runtime.loading import machine
from bow.schedule import Span, Timeline

_Spans: TypeAlias = dict[tuple[str, str], list[Span]]

OnMeasured: TypeAlias = Callable[[int, int], None]  # progress callback: measured tiles, total tiles

REPEATS = 5
WARM_UP = 2


def measure_tiles(
    captured: CapturedOperators,
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
    on_measured: OnMeasured | None = None,
) -> TileTimes:
    """Time every tile that a partition for `num_devices` devices may have, once for each operator and shape."""
    # The tile runtime runs whole steps on one device, each time with a different split of every operator. A tile's time
    # includes slicing and assembling its inputs and the runtime's overhead since the previous tile.
    times = TileTimes() if known is None else TileTimes(dict(known.tiles), dict(known.updates))
    graph, group = captured.graph, ProcessGroup(device or torch.device("cpu"), is_alone=True)
    covering = _covering_partitions(graph, rules, num_devices, even)
    partitions = [(splits, _keys(graph, rules, splits)) for splits in covering]
    wanted = {key for _, keys in partitions for of in keys for key in of}
    for splits, keys in partitions:
        if on_measured is not None:
            on_measured(len(wanted & times.tiles.keys()), len(wanted))
        if graph.hash in times.updates and all(key in times.tiles for of in keys for key in of):
            continue
        runtime = TileRuntime(captured, Partition(graph.hash, splits), model, optimizer, group, rules=rules)
        steps = list(_steps(runtime, batch, repeats))
        found: dict[str, list[TileTime]] = defaultdict(list)
        wholes = []
        for spans in steps:
            wholes.append(0)
            for operator, of in zip(graph.operators, keys, strict=True):
                for key, took in zip(of, _times_of(operator, len(of), spans), strict=True):
                    found[key].append(took)
                    wholes[-1] += took.total_ns
        # Medians of tiles exclude occasional interruptions, whole steps include them: scale tiles to match the steps.
        medians = {}
        for key, taken in found.items():
            forward, backward = zip(*((each.forward_ns, each.backward_ns) for each in taken), strict=True)
            medians[key] = TileTime(round(statistics.median(forward)), round(statistics.median(backward)))
        parts = sum(medians[key].total_ns for of in keys for key in of)
        factor = statistics.median(wholes) / max(parts, 1)
        times.tiles = {key: time.scaled(factor) for key, time in medians.items()} | times.tiles
        # After the backward passes, for all weights: assembling gradients, and the update.
        after_backward = ([*spans["reduction", "gradients"], *spans["update", "all"]] for spans in steps)
        updates = statistics.median(sum(span.duration_ns for span in of) for of in after_backward)
        trained = sum(weight.num_bytes for weight in graph.weights.values() if weight.differentiable)
        times.updates.setdefault(graph.hash, updates / max(trained, 1))
    if on_measured is not None:
        on_measured(len(wanted), len(wanted))
    return times


def cached_tile_times(
    captured: CapturedOperators,
    model: nn.Module,
    batch: Any,
    optimizer: OptimizerFactory,
    num_devices: int,
    *,
    device: torch.device | None = None,
    **settings: Any,
) -> TileTimes:
    """Like `measure_tiles`, but measure only tiles that are not cached for this hardware."""
    cache = times_cache(device or torch.device("cpu"), optimizer(model.parameters()))
    known = cache.load(TileTimes.from_plain)
    times = measure_tiles(captured, model, batch, optimizer, num_devices, device=device, known=known, **settings)
    if times != known:
        warn_if_busy()
        try:
            cache.keep(times.to_plain())
        except OSError as error:
            raise SettingError(
                f"measured tile times cannot be cached in {cache_folder()} ({disk_reason(error)}); set BOW_CACHE to a "
                "writable folder"
            ) from error
    return times


def times_cache(device: torch.device, optimizer: torch.optim.Optimizer) -> Measurements:
    """Return the cache of tile times, keyed by hardware, threads, optimizer, and versions of PyTorch and bow."""
    settings = [
        sorted((name, str(value)) for name, value in group.items() if name not in ("params", "lr", "initial_lr"))
        for group in optimizer.param_groups
    ]
    hardware = machine() if device.type == "cpu" else torch.cuda.get_device_name(device)
    return Measurements("tiles", processor(), hardware, torch.get_num_threads(), type(optimizer).__name__, settings)


def _covering_partitions(
    graph: OperatorGraph, rules: Rules, num_devices: int, even: bool
) -> Iterator[tuple[Split, ...]]:
    """Yield single-device partitions that together contain every split of every operator."""
    space = SplitSpace(graph, rules, 1, devices="every", max_tiles=num_devices, even=even)
    options = [list(space.splits(operator)) for operator in range(space.num_operators)]
    for turn in range(max(map(len, options))):
        yield tuple(of[min(turn, len(of) - 1)] for of in options)


def _keys(graph: OperatorGraph, rules: Rules, splits: Sequence[Split]) -> list[list[str]]:
    pairs = zip(graph.operators, splits, strict=True)
    return [[tile_key(graph, rules, each, box) for box in tiles_of(graph, each, split)] for each, split in pairs]


def _steps(runtime: TileRuntime, batch: Any, repeats: int) -> Iterator[_Spans]:
    """Yield the spans of each timed step by category and name, extended back to the end of the previous span."""
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
    """Return the time of each tile of an operator in one step."""
    # If tiles sum within the operator, one span covers the part before the sum for all tiles, which share it equally.
    # Their backward spans come in two rounds: for the part after the sum, then for the part before it.
    forward = [span.duration_ns for span in spans["forward", operator.name]]
    backward = [span.duration_ns for span in spans["backward", operator.name]]
    together, own = sum(forward[:-count]), forward[-count:]
    return [TileTime(own[tile] + together // count, sum(backward[tile::count])) for tile in range(count)]


OPTIMIZER: OptimizerFactory = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)  # default of measurements


def measured_costs(
    captured: CapturedOperators,
    model: nn.Module,
    batch: Any,
    topology: DeviceTopology,
    optimizer: OptimizerFactory = OPTIMIZER,
    *,
    even: bool = False,
    rules: Rules = RULES,
    on_measured: OnMeasured | None = None,
) -> MeasuredCosts:
    """Return measured costs for the device kinds of this machine (others use a roofline), measuring missing tiles."""
    # Device kinds are matched by name, as given by `bow.planning.tiles.machine.read_devices`.
    times = {}
    for kind, device, cores in _local_device_kinds(topology):
        settings: dict[str, Any] = {"device": device, "even": even, "rules": rules, "on_measured": on_measured}
        with pinned_to(cores) if cores else contextlib.nullcontext():
            times[kind] = cached_tile_times(captured, model, batch, optimizer, topology.num_devices, **settings)
    if not times:
        kinds = ", ".join(dict.fromkeys(device.kind.name for device in topology.devices))
        raise SettingError(
            f"costs=measured needs devices of this machine, topology {topology.name!r} has {kinds}; use "
            "costs=roofline, or topology=machine"
        )
    return MeasuredCosts(captured.graph, rules, topology, times)


def _local_device_kinds(topology: DeviceTopology) -> Iterator[tuple[str, torch.device, list[int]]]:
    """Yield the topology's device kinds that this machine has: name, a device, and its cores."""
    cores = sorted(available_cores())
    own = {core_kind(count): cores[:count] for count in range(1, len(cores) + 1)}
    for kind in dict.fromkeys(device.kind.name for device in topology.devices):
        if kind in own:
            yield kind, torch.device("cpu"), own[kind]
        for number in range(torch.cuda.device_count()):
            if kind == torch.cuda.get_device_name(number):
                yield kind, torch.device("cuda", number), []
                break


MEMORY_GIB = 1e6  # of each device: effectively unlimited, since memory is not checked here


def predicted_timeline(
    graph: OperatorGraph, partition: Partition, group: ProcessGroup, optimizer: torch.optim.Optimizer
) -> Timeline:
    """Return the simulated timeline of a step on rank 0, an empty one on other ranks; collective."""
    # Tile costs are those measured earlier on this machine (`bow plan costs=measured`), otherwise from a roofline with
    # the device's current speed. Costs of messages and sums during training are those cached by a plan
    # (`topology=machine`) or an earlier training, otherwise measured now and cached.
    kind = device_kind(group.device, "measured", MEMORY_GIB)
    inventory = DeviceInventory.of(group)
    link_models, sum_us = cached_busy_links(group, inventory)
    if group.rank:
        return Timeline()
    devices = [Device(f"device {number}", kind, node) for number, node in enumerate(inventory.nodes)]
    topology = measured_topology(topology_with_assumed_links(devices, inventory.gpus), link_models, sum_us)
    times = times_cache(group.device, optimizer).load(TileTimes.from_plain) or TileTimes()
    costs = MeasuredCosts(graph, RULES, topology, {kind.name: times})
    problem = Problem(graph, RULES, topology, costs)
    return problem.simulate(partition.splits, partition.learners).timeline


def save_timelines(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Write timelines as trace events for `chrome://tracing` or https://ui.perfetto.dev, each as a process."""
    events = []
    for number, (name, timeline) in enumerate(timelines.items(), 1):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}})
        events += [{**event, "pid": number} for event in timeline.to_chrome()["traceEvents"]]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8")
