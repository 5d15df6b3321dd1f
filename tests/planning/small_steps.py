"""A step that is small enough to work out by hand: two linear layers and a loss, on devices that are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bow.planning.problem.box import Box, volume
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.problem.operator_graph import OperatorGraph, PlanOperator, TensorShape
from bow.planning.problem.partition import Partition, Split
from bow.planning.search.problem import Problem
from bow.planning.simulator.costs import TileTime
from bow.planning.simulator.python_simulator import TaskGraph
from bow.planning.simulator.step_model import StepModel, Task, TaskKind
from tests.planning.random_steps import RULES

SAMPLES, INSIDE, HIDDEN, OUTSIDE = 4, 3, 6, 2

GRAPH = OperatorGraph(
    operators=(
        PlanOperator("first", "linear", (0,), (1,), ("w1", "b1"), layer="layer1"),
        PlanOperator("second", "linear", (1,), (2,), ("w2",)),
        PlanOperator("loss", "loss", (2,), (3,)),
    ),
    tensors={
        0: TensorShape((SAMPLES, INSIDE)),
        1: TensorShape((SAMPLES, HIDDEN)),
        2: TensorShape((SAMPLES, OUTSIDE)),
        3: TensorShape(()),
    },
    batch=(0,),
    weights={"w1": TensorShape((HIDDEN, INSIDE)), "b1": TensorShape((HIDDEN,)), "w2": TensorShape((OUTSIDE, HIDDEN))},
    loss=3,
)

FIRST, SECOND, LOSS = range(3)

ALONE = (Split((1, 1), (0,)), Split((1, 1), (0,)), Split((), (0,)))
"""All on device 0."""

DATA = (Split((2, 1), (0, 1)), Split((2, 1), (0, 1)), Split((), (0,)))
"""Samples on two devices."""


@dataclass(frozen=True)
class ElementCosts:
    """Forward a nanosecond for each element, backward two, and an update one for each byte."""

    def tile_time(self, operator: int, box: Box, device: int) -> TileTime:
        return TileTime(volume(box), 2 * volume(box))

    def update_ns(self, weight_bytes: int, device: int) -> int:
        return weight_bytes


def topology(devices: int = 2, memory_gib: float = 1.0, *, overlap: bool = True) -> DeviceTopology:
    """Devices on one bus: a transfer takes 5 ns and 1 ns for each byte."""
    kind = DeviceKind("kind", memory_gib, 1.0, 1.0)
    names = tuple(f"d{number}" for number in range(devices))
    links = (Link(names, 0.005, 1.0, shared=True),) if devices > 1 else ()
    return DeviceTopology("bus", tuple(Device(name, kind) for name in names), links, overlap=overlap)


def partition(splits: tuple[Split, ...] = DATA, learners: int = 1) -> Partition:
    return Partition(GRAPH.hash, splits, learners)


def problem(devices: int = 2, **others: Any) -> Problem:
    return Problem(GRAPH, RULES, topology(devices), ElementCosts(), **others)


def model(devices: int = 2, learners: int = 1, overlap: bool = True, graph: OperatorGraph = GRAPH) -> StepModel:
    return StepModel(graph, RULES, topology(devices, overlap=overlap), ElementCosts(), learners=learners)


def tasks_of(step: StepModel, splits: tuple[Split, ...]) -> TaskGraph:
    return TaskGraph.of(step, Partition(step.graph.hash, splits, step.learners))


def of_kind(graph: TaskGraph, kind: TaskKind) -> list[Task]:
    return [task for task in graph.tasks if task.kind is kind]


def waits_for(graph: TaskGraph, task: Task) -> list[Task]:
    return [graph.tasks[number] for number in graph.predecessors[graph.tasks.index(task)]]
