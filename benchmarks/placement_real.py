"""The real part of `python -m benchmarks placement`: an RNNLM on two devices of this machine, placed and run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.harness import quartiles, say, together
from benchmarks.placement_networks import PLACED
from benchmarks.placement_steps import RealSteps
from benchmarks.predicted_cases import Timed, time_strategies
from benchmarks.tile_times import mean_times
from bow.cluster import World
from bow.devices import available_cores
from bow.models import NETWORKS
from bow.models.networks import Size
from bow.planning.placement import methods
from bow.planning.placement.groups import Devices, SearchBudget, SimulatedEvaluator, module_groups
from bow.planning.placement.training import LearningSettings, train_policy
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.topology_files import topology_to_dict
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.simulator.costs import MeasuredCosts
from bow.planning.tiles import CapturedOperators, capture_operators
from bow.planning.tiles.communication import ProcessGroup
from bow.planning.tiles.link_benchmark import measure_busy_links, measured_topology
from bow.planning.tiles.machine import pinned_to, read_devices
from bow.planning.tiles.tile_costs import measure_tiles

CPU = torch.device("cpu")

DEVICES = 2

NETWORK = "rnnlm"

# Cells of some hundred microseconds: longer than a message, or two devices would not pay off
SIZE = Size({"vocabulary": 1000, "hidden": 256, "layers": 2}, (8,), 32)

OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.01)

# By name in the table: the name in `bow.planning.placement.methods`
METHODS: Mapping[str, str] = {"single": "gpu", "expert": "expert", "mcmc": "mcmc", "learned": "learned"}

REAL = "learned from real steps"

FEW = LearningSettings(samples=4, elites=4)  # samples per update: real steps are slow


def measure(budget: SearchBudget, turns: int, updates: int, seed: int) -> dict[str, Any]:
    known = read_devices("cpu", DEVICES)
    in_all = functools.partial(_measured, known=known, budget=budget, turns=turns, updates=updates, seed=seed)
    return together(DEVICES, in_all)


def _measured(
    world: World, known: DeviceTopology, budget: SearchBudget, turns: int, updates: int, seed: int
) -> dict[str, Any]:
    """Run in every process; the result of the first one is used."""
    group = ProcessGroup(CPU)
    with pinned_to([available_cores()[world.local_rank % len(available_cores())]]):
        topology = measured_topology(known, *measure_busy_links(group))
        captured, model, batch = _captured()
        own = measure_tiles(captured, model, batch, OPTIMIZER, 1)
        times = {topology.devices[0].kind.name: mean_times(group.all_gather(own))}
        costs = MeasuredCosts(captured.graph, RULES, topology, times)
        problem = Problem(captured.graph, RULES, topology, costs)
        evaluator = SimulatedEvaluator(problem, module_groups(captured.graph))
        found = _placed(evaluator, budget, seed) if group.rank == 0 else {}
        real = RealSteps(captured, model, batch, OPTIMIZER, evaluator, group)
        if group.rank:
            real.serve()
        else:
            found[REAL] = _learned(evaluator, real, updates, seed)
            real.close()
        placements = group.all_gather(found)[0]
        strategies = {name: evaluator.groups.splits(devices) for name, devices in placements.items()}
        timed = time_strategies(group, captured, model, batch, OPTIMIZER, strategies, turns)
    rows = [_row(name, placements[name], evaluator, timed[name]) for name in placements]
    return {
        "network": NETWORK,
        "size": {**SIZE.arguments, "steps": SIZE.inputs[0], "batch": SIZE.batch},
        "groups": len(evaluator.groups),
        "device_names": [device.name for device in topology.devices],
        "topology": topology_to_dict(topology),
        "rows": rows,
    }


def _captured() -> tuple[CapturedOperators, nn.Module, Any]:
    """Capture the network; the same in all processes."""
    torch.manual_seed(0)
    network = NETWORKS[NETWORK]
    model = network.model(**SIZE.arguments)
    batch = network.samples(SIZE, SIZE.batch)
    return capture_operators(model, batch, step=PLACED[NETWORK].step), model, batch


def _placed(evaluator: SimulatedEvaluator, budget: SearchBudget, seed: int) -> dict[str, Devices]:
    found = {}
    for name, method in METHODS.items():
        devices = methods.METHODS[method](evaluator, budget, seed, lambda message: None).devices
        assert devices is not None
        found[name] = devices
        say(f"{name}: {evaluator([devices])[0]:.6f} s predicted")
    return found


def _learned(evaluator: SimulatedEvaluator, real: RealSteps, updates: int, seed: int) -> Devices:
    operations = evaluator.groups.operations(evaluator.num_devices)
    found = train_policy(operations, real, updates=updates, settings=FEW, seed=seed)
    return found.best.placement


def _row(name: str, devices: Devices, evaluator: SimulatedEvaluator, timed: Timed) -> dict[str, Any]:
    return {
        "method": name,
        "predicted_ms": round((evaluator([devices])[0] or 0.0) * 1e3, 3),
        "measured_ms": quartiles(timed.seconds, 3, scale=1e3),
        "groups_on": [devices.count(number) for number in range(evaluator.num_devices)],
        "devices": devices,
    }
