"""A network of a size on a machine: placed by every method, and the resulting load of the devices."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import say
from benchmarks.placement_comparison import Row, compare
from benchmarks.placement_machine import PROCESSOR, device_loads, imbalance, k80_machine
from benchmarks.placement_networks import PLACED
from benchmarks.placement_picture import placement_svg
from bow.planning.placement.groups import Groups, SearchBudget, SimulatedEvaluator, module_groups
from bow.planning.placement.towers import towers
from bow.planning.rules import RULES
from bow.planning.search.problem import Problem
from bow.planning.simulator.costs import RooflineCosts

DATA_SHEET, SLOW = "data_sheet", "slow"

SHOWN = ("learned", "mcmc", "expert")  # methods whose device loads are listed

# Network, size, GPUs, links and method of each picture
PICTURED = (
    ("rnnlm", "paper", 2, DATA_SHEET, "learned"),
    ("rnnlm", "paper", 2, SLOW, "learned"),
    ("rnnlm", "large", 4, DATA_SHEET, "learned"),
    ("nmt", "paper", 4, DATA_SHEET, "expert"),
    ("nmt", "paper", 4, DATA_SHEET, "learned"),
    ("nmt", "large", 4, DATA_SHEET, "learned"),
    ("inception", "paper", 4, DATA_SHEET, "learned"),
)


@dataclass(frozen=True)
class Cell:
    """A placement problem and the methods that solve it."""

    network: str  # its name among `PLACED`
    size: str  # of the network
    gpus: int  # number of GPUs, in addition to a processor
    links: str  # `data_sheet` or `slow`
    copies: float  # factor on the time of copies between devices, relative to the data sheets
    methods: tuple[str, ...]  # placement methods
    budget: SearchBudget  # of each search method
    seed: int  # random seed

    @property
    def title(self) -> str:
        return f"{PLACED[self.network].title}, {self.size}, {self.gpus} GPUs, links {self.links}"


@dataclass(frozen=True)
class Found:
    case: dict[str, Any]  # everything, as plain values
    pictures: dict[str, str]  # by file name: contents


def place_cell(cell: Cell) -> Found:
    network = PLACED[cell.network]
    groups = _groups(cell.network, cell.size)
    memory_gib = network.memory(cell.size)
    evaluator = evaluator_of(
        groups, cell.gpus, memory_gib, cell.copies, optimizer=network.optimizer_bytes_per_weight_byte
    )
    rows = compare(
        evaluator,
        cell.budget,
        methods=cell.methods,
        seed=cell.seed,
        say=lambda message: say(f"{cell.title}: {message}"),
    )
    case = {
        "network": cell.network,
        "title": network.title,
        "size": cell.size,
        "gpus": cell.gpus,
        "links": cell.links,
        "memory_gib": memory_gib,
        "statistics": statistics_of(groups),
        "rows": [_row(evaluator, row) for row in rows],
        "towers": {kind: asdict(towers(evaluator, kind)) for kind in ("synchronous", "asynchronous")},
    }
    return Found(case, _pictures(cell, evaluator, rows))


def statistics_of(groups: Groups) -> dict[str, Any]:
    return {
        "operators": len(groups.graph.operators),  # forward ones, each with its backward pass and update
        "groups": len(groups),
        "kinds": dict(sorted(Counter(group.kind for group in groups.groups).items())),
        "flows": len(groups.flows),  # pairs of groups of which one reads an output of the other
        "flow_bytes": sum(flow.num_bytes for flow in groups.flows),  # per step, if each group had its own device
        "largest": max((len(group.operators) for group in groups.groups), default=0),  # operators in the largest group
    }


def evaluator_of(
    groups: Groups, gpus: int, memory_gib: float, copies: float, *, optimizer: float
) -> SimulatedEvaluator:
    """Evaluator of a network's placements on a machine of the paper."""
    machine = k80_machine(gpus, memory_gib, copies)
    costs = RooflineCosts(groups.graph, RULES, machine)
    problem = Problem(groups.graph, RULES, machine, costs, optimizer_bytes_per_weight_byte=optimizer)
    return SimulatedEvaluator(problem, groups, processors=(PROCESSOR,))


@functools.cache
def _groups(network: str, size: str) -> Groups:
    """Return a network's groups; cached, so that a process captures each network once."""
    placed = PLACED[network]
    return module_groups(placed.graph(placed.sizes[size]))


def _row(evaluator: SimulatedEvaluator, row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {
        "method": row.method,
        "seconds": row.seconds,
        "why_not": row.why_not,
        "greedy_s": row.greedy_s,
        "spent_s": round(row.spent_s, 1),
        "devices": row.devices,
    }
    if row.devices is None:
        return found
    shares = {name: row.devices.count(number) for number, name in enumerate(_names(evaluator))}
    embeddings = {row.devices[n] for n, held in enumerate(evaluator.groups.with_kinds({"embedding"})) if held}
    found["groups_on"] = shares
    found["embeddings_on"] = [_names(evaluator)[device] for device in sorted(embeddings)]
    if row.method not in SHOWN:
        return found
    loads = device_loads(evaluator.result(row.devices), evaluator.processors)
    accelerators = [loads[device] for device in evaluator.accelerators]
    return {**found, "loads": [asdict(load) for load in loads], "imbalance": round(imbalance(accelerators), 3)}


def _names(evaluator: SimulatedEvaluator) -> list[str]:
    return [device.name for device in evaluator.problem.topology.devices]


def _pictures(cell: Cell, evaluator: SimulatedEvaluator, rows: Sequence[Row]) -> dict[str, str]:
    found = {}
    for row in rows:
        key = cell.network, cell.size, cell.gpus, cell.links, row.method
        if (key in PICTURED or cell.size == "tiny") and row.devices is not None and row.seconds is not None:
            title = f"{cell.title}, {row.method}: {row.seconds:.4f} s a step"
            picture = placement_svg(
                evaluator.groups, row.devices, _names(evaluator), processors=evaluator.processors, title=title
            )
            found[f"placement_{'_'.join(map(str, key))}.svg"] = picture + "\n"
    return found
