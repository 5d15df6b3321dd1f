"""`bow.plan`: from a model to a partition."""

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias, cast

from rich.console import Console
from torch import Tensor, nn

from bow.errors import SettingError
from bow.files import Expendable
from bow.forking import begin_to_compute
from bow.graph.learning_step import Step, step_from_loss
from bow.observe.searching import measuring, watched
from bow.planning.problem.device_topology import DeviceTopology
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.topology_files import load_topology, shipped_topologies
from bow.planning.rules import RULES
from bow.planning.rules.rule import Rules
from bow.planning.search.chains import SearchProgress
from bow.planning.search.metropolis import SearchSettings
from bow.planning.search.problem import Problem
from bow.planning.search.search import Found, search
from bow.planning.simulator.costs import Costs, RooflineCosts
from bow.planning.tiles.agreement import check_agreement
from bow.planning.tiles.capture import capture_operators
from bow.planning.tiles.machine import MACHINE, measure_machine
from bow.planning.tiles.tile_costs import OPTIMIZER, measured_costs
from bow.replicas import OptimizerFactory, num_state_tensors

CostsName: TypeAlias = Literal["roofline", "measured"]

COSTS: tuple[CostsName, ...] = ("roofline", "measured")  # Where the times of tiles are from


def plan(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    step: Step | None = None,
    topology: DeviceTopology | str | Path = "two_cores",
    costs: CostsName = "roofline",
    optimizer: OptimizerFactory = OPTIMIZER,
    settings: SearchSettings | None = None,
    rules: Rules = RULES,
    progress: SearchProgress | bool = True,
    **changes: Any,
) -> Found:
    """Find a fast partition for training a model on several devices, none of which has to be there.

    Every operator may be split in samples, attributes and parameters, and each part be computed on any device;
    partitions are simulated, and those that do not fit the devices' memory are left out. Operators take what a roofline
    of their devices gives, or what they were measured to take where the devices are this machine's.

    Ctrl-C ends the search once something was found: the best partition so far is returned, and no `KeyboardInterrupt`
    is raised; before that one is, where no bar is shown. While a bar is
    shown, by the main thread, the handler of SIGINT is one of this function's; the one before it is put back.

    Args:
        model: the model; it is not changed.
        batch: a batch of the shapes to train on, as in `bow.capture`.
        loss: `loss(outputs, targets) -> scalar`.
        step: instead of `loss`: `step(model, batch) -> loss`.
        topology: the devices and what connects them; a file, the name of one that is shipped, such as
            `"p100_cluster"`, or `"machine"`: this machine's, measured.
        costs: `"roofline"`, or `"measured"`: once for each operator, tile shape and kind of device, and kept on disk.
        optimizer: makes an optimizer from the model's parameters; measured with the tiles, and its state is counted.
        settings: of the search; None: the defaults.
        rules: how operators can be split.
        progress: True: a bar with the best time so far, where standard error is a terminal; False: none; or who is told
            seconds, proposals and the best time of a batch in nanoseconds instead, and ends the search by returning
            False; None goes on.
        **changes: fields of `settings`, such as `budget_s=60`, `learners=(1, 2)`, `starts="data"` or `seed=1`.

    Returns:
        The best one (`partition`), its simulated time (`makespan_ns`), and how it was found; `explain()` says what
        was chosen and why, `timeline()` when what runs, `train(data, ...)` trains by it, and `save(path)` keeps it for
        `bow.Found.load`.

    Raises:
        CaptureError, LossError, DataError: as `bow.capture` does.
        TopologyError: the topology cannot be read, or be divided among so many learners.
        ScheduleError: no partition that was looked at fits the devices' memory.
        SettingError: a setting outside its range, or nothing to measure on.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        >>> batch = torch.randn(32, 64), torch.randint(10, (32,))
        >>> found = plan(model, batch, nn.functional.cross_entropy, budget_s=None, proposals=20, starts=("single",))
        >>> len(found.partition.splits), found.makespan_ns > 0
        (5, True)

    References:
        Jia, Zaharia, Aiken: Beyond data and model parallelism for deep neural networks, 2018.
    """
    if costs not in COSTS:
        raise SettingError(f"costs must be one of {', '.join(COSTS)}, got {costs!r}")
    chosen = _settings(settings, changes)
    if not isinstance(rules, Rules):
        raise SettingError(f"rules must be a Rules, got {type(rules).__name__}; leave it out for those of bow")
    captured = capture_operators(model, batch, loss, step=step, rules=rules)
    devices = topology_of(topology)
    check_agreement(captured, model, batch, step_from_loss(loss) if step is None else step)  # type: ignore[arg-type]
    console = Console(file=cast(TextIO, Expendable(sys.stderr)))
    shown = progress is True and console.is_terminal
    own = None
    if costs == "measured":
        begin_to_compute("bow.plan")
        with measuring(console) if shown else nullcontext() as tell:
            own = measured_costs(captured, model, batch, devices, optimizer, even=chosen.even, rules=rules, tell=tell)
    problem = problem_of(captured.graph, devices, rules, own, optimizer)
    if shown:
        with watched(chosen.budget_s, console) as tell:
            found = search(problem, chosen, tell)
    else:
        found = search(problem, chosen, None if isinstance(progress, bool) else progress)
    return dataclasses.replace(found, subject={"model": model, "loss": loss, "step": step})


def _settings(settings: SearchSettings | None, changes: Mapping[str, Any]) -> SearchSettings:
    if settings is not None and not isinstance(settings, SearchSettings):
        raise SettingError(f"settings must be SearchSettings, got {type(settings).__name__}; or name its fields")
    names = [field.name for field in dataclasses.fields(SearchSettings)]
    unknown = next((name for name in changes if name not in names), None)
    if unknown is not None:
        raise SettingError(f"bow.plan has no setting {unknown!r}; those of the search are {', '.join(names)}")
    return dataclasses.replace(settings or SearchSettings(), **changes)


def topology_of(topology: DeviceTopology | str | Path, count: int | None = None) -> DeviceTopology:
    """The topology that is meant."""
    if isinstance(topology, DeviceTopology):
        return topology
    if not isinstance(topology, str | os.PathLike):
        raise SettingError(
            f"topology must be a name, a file or a DeviceTopology, got {topology!r}; the names are {MACHINE}, "
            f"{', '.join(shipped_topologies())}"
        )
    return measure_machine(count=count) if topology == MACHINE else load_topology(topology)


def problem_of(
    graph: OperatorGraph,
    topology: DeviceTopology | str | Path,
    rules: Rules = RULES,
    costs: Costs | None = None,
    optimizer: OptimizerFactory = OPTIMIZER,
) -> Problem:
    """What is planned for."""
    devices = topology_of(topology)
    return Problem(
        graph,
        rules,
        devices,
        costs or RooflineCosts(graph, rules, devices),
        optimizer_bytes_per_weight_byte=float(num_state_tensors(optimizer)),
    )
