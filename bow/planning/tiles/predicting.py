"""What the simulator expects of a strategy on the devices that are about to run it."""

import torch

from bow.planning.problem.device_topology import Device
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Partition
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.simulator.measured_costs import MeasuredCosts, TileTimes
from bow.planning.tiles.kept_lines import Members, lines_here
from bow.planning.tiles.links import measured_topology
from bow.planning.tiles.machine import connected
from bow.planning.tiles.measuring import load_times, times_file
from bow.planning.tiles.speeds import device_kind
from bow.planning.tiles.team import Team
from bow.schedule import Timeline

MEMORY_GIB = 1e6
"""Of each device: whether a strategy fits is not the question here."""


def predicted_timeline(graph: OperatorGraph, strategy: Partition, team: Team, optimizer: str) -> Timeline:
    """When a step by a strategy should run what on the devices of a team.

    Tiles take what was measured of them on this machine earlier (`bow plan costs=measured`), and what was never
    measured takes what a roofline of the device gives, as fast as it is just now. Messages and sums take what they take
    while devices train, as it was measured for a plan (`topology=machine`) or an earlier training; else it is measured
    now, and kept. All devices ask for it, and the first one simulates.
    """
    kind = device_kind(team.device, "measured", MEMORY_GIB, torch.get_num_threads())
    members = Members.of(team)
    lines, sum_us = lines_here(team, members)
    if team.number:
        return Timeline()
    devices = [Device(f"device {number}", kind, node) for number, node in enumerate(members.nodes)]
    topology = measured_topology(connected(devices, members.gpus), lines, sum_us)
    times = load_times(times_file(team.device, optimizer)) or TileTimes()
    costs = MeasuredCosts(graph, RULES, topology, {kind.name: times})
    problem = Problem(graph, RULES, topology, costs, overlap=topology.overlap)
    return problem.simulate(strategy.splits, strategy.learners).timeline
