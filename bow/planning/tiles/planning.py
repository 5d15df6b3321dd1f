"""`bow.plan`: find a partition for a model."""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias, TypeVar, cast

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bow.data import batch_length
from bow.devices.memory import host_memory
from bow.errors import ScheduleError, SettingError, reason, warn_user
from bow.files import Expendable
from bow.forking import begin_to_compute
from bow.graph.learning_step import Step, checked_model, step_from_loss
from bow.observe.progress import measuring, watched
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
from bow.replicas import OptimizerFactory, in_mode, num_state_tensors
from bow.values import whole

CostsName: TypeAlias = Literal["roofline", "measured"]

NUMBER_BYTES = 16  # of a sample's number, while it is copied
COSTS: tuple[CostsName, ...] = ("roofline", "measured")  # sources of tile times


def plan(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    step: Step | None = None,
    topology: DeviceTopology | str | Path = "two_cores",
    costs: CostsName = "roofline",
    optimizer: OptimizerFactory = OPTIMIZER,
    batch_sizes: Sequence[int] = (),
    settings: SearchSettings | None = None,
    rules: Rules = RULES,
    progress: SearchProgress | bool = True,
    **changes: Any,
) -> Found:
    """Find a fast partition for training a model on several devices, which need not exist on this machine.

    Every operator may be split by sample, attribute and parameter dimensions, and each tile placed on any device.
    Candidate partitions are simulated; those that exceed the devices' memory are rejected. Operator times come from a
    roofline model of the devices, or from measurements if the devices are this machine's.

    Once a partition has been found, Ctrl-C ends the search and returns the best one so far, without raising
    `KeyboardInterrupt`. Before that, `KeyboardInterrupt` is raised if no progress bar is shown. While the main thread
    shows a bar, the SIGINT handler is replaced; it is restored afterwards.

    Args:
        model: the model; it is not changed.
        batch: a batch of the shapes to train on, as in `bow.capture`.
        loss: `loss(outputs, targets) -> scalar`.
        step: instead of `loss`: `step(model, batch) -> loss`.
        topology: the devices and links; a file, the name of a shipped topology, such as `"p100_cluster"`, or
            `"machine"` for this machine, measured.
        costs: `"roofline"`, or `"measured"`: timed once for each operator, tile shape and device kind, cached on disk.
        optimizer: makes an optimizer from the model's parameters; timed with the tiles, its state counts as memory.
        batch_sizes: candidate batch sizes per learner, compared by the time to an accuracy, which needs `noise_scale=`;
            the search time is divided equally. Empty: only the size of `batch`.
        settings: search settings; None: the defaults.
        rules: how operators can be split.
        progress: True: a progress bar with the best time so far, if standard error is a terminal; False: none; or a
            callback that receives seconds, proposals and the best time of a batch in nanoseconds; it ends the search
            by returning False (None continues).
        **changes: fields of `settings`, such as `budget_s=60`, `learners=(1, 2)`, `noise_scale=900` or `seed=1`.

    Returns:
        The best partition (`partition`), its batch size (`problem.batch_size`), its simulated time (`makespan_ns`), and
        how it was found. `explain()` describes and justifies the choices, `timeline()` is the simulated schedule,
        `train(data, ...)` trains with it, and `save(path)` writes it for `bow.Found.load`.

    Raises:
        CaptureError, LossError, DataError: as `bow.capture` does.
        TopologyError: the topology cannot be read, or cannot be divided among the learners.
        ScheduleError: none of the partitions tried fits the devices' memory.
        SettingError: a setting outside its range, or no device to measure on.

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
    batches = resize_batch(batch, batch_sizes, chosen)
    devices = topology_of(topology)
    console = Console(file=cast(TextIO, Expendable(sys.stderr)))
    shown = progress is True and console.is_terminal
    if costs == "measured":
        begin_to_compute("bow.plan")

    def planned(batch: Any) -> Found:
        with in_mode(checked_model(model), True):
            captured = capture_operators(model, batch, loss, step=step, rules=rules)
            check_agreement(captured, model, batch, step_from_loss(loss) if step is None else step)  # type: ignore[arg-type]
        own = None
        if costs == "measured":
            with measuring(console) if shown else nullcontext() as tell:
                own = measured_costs(
                    captured, model, batch, devices, optimizer, even=chosen.even, rules=rules, on_measured=tell
                )
        problem = problem_of(captured.graph, devices, rules, own, optimizer, batch_length(batch))
        if not shown:
            return search(problem, each_search, None if isinstance(progress, bool) else progress)
        with watched(each_search.budget_s, console) as tell:
            return search(problem, each_search, tell)

    each_search = share_budget(chosen, len(batches))
    fitting = plan_batch_sizes(
        planned,
        batches,
        warn_user,
        batch_length,
        lambda each: each.is_interrupted,
    )
    found = min(fitting, key=lambda each: each.sample_ns)
    return dataclasses.replace(found, subject={"model": model, "loss": loss, "step": step})


def resize_batch(batch: Any, sizes: Sequence[int], settings: SearchSettings) -> list[Any]:
    """Return a batch of each size from the samples of one, repeated if necessary; only that one without sizes."""
    sizes = [whole("batch_sizes", size) for size in (sizes if isinstance(sizes, Iterable) else [sizes])]
    length = batch_length(batch)
    if sizes and any(each.dim() and len(each) != length for each in tree_leaves(batch) if isinstance(each, Tensor)):
        raise SettingError(
            f"batch_sizes needs tensors of equal length in the batch, not all have the first one's {length} samples; "
            "leave them out, and plan for a batch of each size"
        )
    if len(sizes) > 1 and settings.noise_scale is None:
        raise SettingError(
            f"batch_sizes={','.join(map(str, sizes))} are compared by the time to an accuracy, since a large batch "
            "always takes less time for a sample; give noise_scale= too, or one size"
        )

    samples = [each for each in tree_leaves(batch) if isinstance(each, Tensor) and each.dim() and not each.is_meta]
    of_each, free = sum(each.nbytes for each in samples) / max(length, 1) + NUMBER_BYTES, host_memory()[1]

    def of_size(size: int) -> Any:
        try:
            if size * of_each > free:
                raise RuntimeError(f"{size * of_each:g} bytes, of which {free:g} are free")
            numbers = torch.arange(size) % length
            return tree_map_only(Tensor, lambda each: each[numbers.to(each.device)] if each.dim() else each, batch)
        except RuntimeError as error:
            raise SettingError(f"not enough memory for a batch of batch_sizes={size}; use a smaller size") from error

    return [of_size(size) for size in sizes] or [batch]


Sized = TypeVar("Sized")
Chosen = TypeVar("Chosen")


def plan_batch_sizes(
    planned: Callable[[Sized], Chosen],
    sizes: Sequence[Sized],
    report: Callable[[str], None],
    size_of: Callable[[Sized], int],
    is_interrupted: Callable[[Chosen], bool],
) -> list[Chosen]:
    """Plan for each batch size that fits the devices' memory; report why others are left out."""
    found: list[Chosen] = []
    refused: dict[str, Exception] = {}  # by the batch sizes left out
    for number, each in enumerate(sizes):
        try:
            if found and is_interrupted(found[-1]):
                raise KeyboardInterrupt
            found.append(planned(each))
        except ScheduleError as error:
            refused[str(size_of(each))] = error
        except KeyboardInterrupt:
            if not found:
                raise
            left = ",".join(str(size_of(other)) for other in sizes[number:])
            refused[left] = ScheduleError("the search was interrupted")
            break
    if not found:
        raise next(iter(refused.values()))
    for names, why in refused.items():
        report(f"left out: batch_sizes={names} ({reason(why)})")
    return found


def share_budget(settings: SearchSettings, searches: int) -> SearchSettings:
    if settings.budget_s is None:
        return settings
    return dataclasses.replace(settings, budget_s=settings.budget_s / searches)


def _settings(settings: SearchSettings | None, changes: Mapping[str, Any]) -> SearchSettings:
    if settings is not None and not isinstance(settings, SearchSettings):
        raise SettingError(f"settings must be SearchSettings, got {type(settings).__name__}; or name its fields")
    names = [field.name for field in dataclasses.fields(SearchSettings)]
    unknown = next((name for name in changes if name not in names), None)
    if unknown is not None:
        raise SettingError(f"bow.plan has no setting {unknown!r}; those of the search are {', '.join(names)}")
    return dataclasses.replace(settings or SearchSettings(), **changes)


def topology_of(topology: DeviceTopology | str | Path, count: int | None = None) -> DeviceTopology:
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
    batch_size: int = 1,
) -> Problem:
    devices = topology_of(topology)
    return Problem(
        graph,
        rules,
        devices,
        costs or RooflineCosts(graph, rules, devices),
        optimizer_bytes_per_weight_byte=float(num_state_tensors(optimizer)),
        batch_size=batch_size,
    )
