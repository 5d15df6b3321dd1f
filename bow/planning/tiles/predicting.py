"""Simulate a partition on the devices that will run it; export predicted and measured timelines."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from bow.planning.problem.device_topology import Device
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Partition
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.simulator.costs import MeasuredCosts, TileTimes
from bow.planning.tiles.link_benchmark import DeviceInventory, cached_busy_links, measured_topology
from bow.planning.tiles.machine import device_kind, topology_with_assumed_links
from bow.planning.tiles.process_group import ProcessGroup
from bow.planning.tiles.tile_costs import times_cache
from bow.schedule import Timeline

MEMORY_GIB = 1e6  # of each device: effectively unlimited, since memory is not checked here


def predicted_timeline(graph: OperatorGraph, partition: Partition, group: ProcessGroup, optimizer: str) -> Timeline:
    """Return the simulated timeline of a step on rank 0, an empty one on other ranks; collective."""
    # Tile costs are those measured earlier on this machine (`bow plan costs=measured`), otherwise from a roofline with
    # the device's current speed. Costs of messages and sums during training are those cached by a plan
    # (`topology=machine`) or an earlier training, otherwise measured now and cached.
    kind = device_kind(group.device, "measured", MEMORY_GIB, torch.get_num_threads())
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
