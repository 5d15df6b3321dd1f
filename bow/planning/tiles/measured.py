"""What the tiles of a step cost on the devices of a topology: measured where they are those of this machine."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from bow.devices import available_cores
from bow.errors import SettingError
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.rules import RULES
from bow.planning.rules.rule import Rules
from bow.planning.simulator.measured_costs import MeasuredCosts
from bow.planning.tiles.captured import CapturedStep
from bow.planning.tiles.machine import all_on, core_kind
from bow.planning.tiles.measuring import Tell, kept_times
from bow.planning.tiles.updating import OptimizerFactory

OPTIMIZER: OptimizerFactory = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
"""Whose updates are measured where no other is given."""


def measured_costs(
    captured: CapturedStep,
    model: nn.Module,
    batch: Any,
    topology: DeviceTopology,
    optimizer: OptimizerFactory = OPTIMIZER,
    *,
    even: bool = False,
    rules: Rules = RULES,
    tell: Tell | None = None,
) -> MeasuredCosts:
    """Measure what is not yet known of a step's tiles on this machine's devices; others have the roofline's times.

    A kind of device is this machine's where its name says so, as those of `bow.planning.tiles.machine.read_devices` do.
    """
    times = {}
    for kind, device, cores in _here(topology):
        settings: dict[str, Any] = {"device": device, "even": even, "rules": rules, "tell": tell}
        measure = functools.partial(kept_times, captured, model, batch, optimizer, topology.num_devices, **settings)
        if device.type == "cuda":
            times[kind] = measure()
        else:
            with all_on(cores):
                times[kind] = measure()
    if not times:
        kinds = ", ".join(dict.fromkeys(device.kind.name for device in topology.devices))
        raise SettingError(
            f"costs=measured needs devices of this machine, topology {topology.name!r} has {kinds}; take "
            "costs=roofline, or topology=machine"
        )
    return MeasuredCosts(captured.graph, rules, topology, times)


def _here(topology: DeviceTopology) -> Iterator[tuple[str, torch.device, list[int]]]:
    """The kinds of devices that this machine has: name, a device, and the cores that one of them is."""
    cores = sorted(available_cores())
    own = {core_kind(count): cores[:count] for count in range(1, len(cores) + 1)}
    for kind in dict.fromkeys(device.kind.name for device in topology.devices):
        if kind in own:
            yield kind, torch.device("cpu"), own[kind]
        for number in range(torch.cuda.device_count()):
            if kind == torch.cuda.get_device_name(number):
                yield kind, torch.device("cuda", number), []
                break
