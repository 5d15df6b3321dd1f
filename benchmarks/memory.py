"""Upper bound of the benefit of offline memory planning for a training step.

The native runtime frees a value after its last reader. A planner that knows the whole step could put all values into
one allocation (Budea, 2.2.3.1; Tang et al., 5.1). Bytes are compared: the sum of all values, the peak of the runtime,
the size of a planned allocation, and the lower bound of any plan, also with results that reuse the memory of
arguments. And time: a step whose operators only allocate their results, relative to the step itself. This
overestimates the saving, because it includes the overhead of operator calls.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import harness
from benchmarks.harness import ratios, setting, spread
from benchmarks.workloads import WORKLOADS
from bow.graph import Operator, StepGraph
from bow.models import NETWORKS
from bow.runtime.local import operators_of
from bow.schedule import Schedule
from bow.schedule.profiler.measuring import BoundStep, ScheduledStep
from bow.timing import time_in_turns

ALIGNMENT = 64
"""Alignment of torch's allocations in bytes."""


@dataclass(frozen=True)
class Config(harness.Config):
    models: tuple[str, ...] = setting(
        (*WORKLOADS, *NETWORKS), "models", choices=(*WORKLOADS, *NETWORKS), quick=("logistic_regression",)
    )
    batch_size: int = setting(16, "batch size; networks of the papers have their own")
    size: str = setting("tiny", "size of the networks of the papers")
    turns: int = setting(15, "number of measurements", quick=2)
    stint_s: float = setting(0.1, "seconds of a measurement", quick=0.001)


@dataclass(frozen=True)
class Allocation:
    """Memory that operators of a step write and read."""

    begin: int  # index of the operator that makes it
    end: int  # index of the last operator that reads it or a view of it
    bytes: int

    def meets(self, other: "Allocation") -> bool:
        """Whether the lifetimes overlap."""
        return self.begin <= other.end and other.begin <= self.end


def measure(config: Config) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = []
    for name in config.models:
        title, step = step_of(name, config)
        rows.append({"name": name, "title": title, **bytes_of(step.graph), **time_of(step, config)})
        harness.say(f"{title}: {rows[-1]['share']}")
    return {"models": rows}


def step_of(name: str, config: Config) -> tuple[str, BoundStep]:
    """Return a model's display name, and its training step."""
    if name in WORKLOADS:
        workload = WORKLOADS[name]
        return workload.title, BoundStep.of(workload.model(), workload.make_data(config.batch_size), workload.loss)
    network = NETWORKS[name]
    torch.manual_seed(0)
    return network.title, BoundStep.of(network.build(config.size), network.batch(config.size), network.loss)


def bytes_of(graph: StepGraph) -> dict[str, int]:
    """Bytes by strategy for allocating the values of a step."""
    own = allocations(graph)
    places = range(len(operators_of(graph)))
    return {
        "values": len(own),
        "apart": sum(each.bytes for each in own),
        "runtime": max(sum(each.bytes for each in own if each.begin <= place <= each.end) for place in places),
        "plan": planned(own),
        "least": max(sum(each.bytes for each in own if each.begin <= place < each.end) for place in places),
    }


def allocations(graph: StepGraph) -> list[Allocation]:
    """Allocations of a step's operators; views count as their base, results live until the end."""
    operators = operators_of(graph)
    memory: dict[int, int] = {}  # by value: the base value
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for place, operator in enumerate(operators):
        for value in operator.reads:
            if value in memory:
                ends[memory[value]] = place
        for made in (result for result in operator.results if result is not None):
            if not operator.is_view:
                memory[made], begins[made], ends[made] = made, place, place
            elif operator.reads[0] in memory:
                memory[made] = memory[operator.reads[0]]
    ends |= {memory[value]: len(operators) for value in graph.results if value in memory}
    return [
        Allocation(begins[value], ends[value], -(-graph.values[value].num_bytes // ALIGNMENT) * ALIGNMENT)
        for value in begins
    ]


def planned(allocations: Sequence[Allocation]) -> int:
    """Size of one allocation for all: the largest first, each in the smallest gap between those it overlaps with.

    References:
        Pisarchyk, Lee: Efficient memory management for deep neural net inference, 2020, algorithm 3.
    """
    placed: list[tuple[int, Allocation]] = []  # by offset
    for each in sorted(allocations, key=lambda one: -one.bytes):
        best: int | None = None
        gap: int | None = None
        reach = 0
        for offset, other in placed:
            if each.meets(other):
                room = offset - reach
                if room >= each.bytes and (gap is None or room < gap):
                    best, gap = reach, room
                reach = max(reach, offset + other.bytes)
        placed.append((best if best is not None else reach, each))
        placed.sort(key=lambda pair: pair[0])
    return max((offset + each.bytes for offset, each in placed), default=0)


def time_of(step: BoundStep, config: Config) -> dict[str, Any]:
    """Time a step on one executor, and one that only allocates."""
    bare = allocating(step.graph)
    cases = {
        "step": ScheduledStep(step, Schedule.sequential(step.num_operators)),
        "allocating": ScheduledStep(dataclasses.replace(step, graph=bare), Schedule.sequential(len(bare.operators))),
    }
    seconds = time_in_turns(cases, turns=config.turns, window_s=config.stint_s)
    return {
        "step_ms": spread(seconds["step"], 4, 1e3),
        "allocating_us": spread(seconds["allocating"], 1, 1e6),
        "share": spread(ratios(seconds["allocating"], seconds["step"]), 4),
    }


def allocating(graph: StepGraph) -> StepGraph:
    """Return the step with operators replaced by ones that only allocate their results."""
    numbers = itertools.count()
    operators = [
        Operator(
            index=next(numbers),
            kind="aten.empty_strided.default",
            arguments=(graph.values[value].shape, graph.values[value].strides),
            keywords={"dtype": graph.values[value].dtype},
            results=(value,),
            phase=operator.phase,
            module=operator.module,
        )
        for operator in operators_of(graph)
        for value in operator.results
        if value is not None and (not operator.is_view or value in graph.results)
    ]
    return dataclasses.replace(graph, operators=tuple(operators))


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    rows = values["models"]
    return {
        "largest": max(rows, key=lambda row: float(row["share"]["median"])),
        "over": max(row["runtime"] / row["least"] for row in rows),
    }
