"""Which device has which part of which weight.

Tiles may read boxes of a weight that overlap: the steps of an unrolled layer may each be split in another way. The
borders of all boxes cut the weight into cells. A device has the cells that its tiles read; a cell that several devices
have is a replica on each, and its gradient is summed over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bow.planner.box import Box, cells, contains
from bow.planner.operator_graph import OperatorGraph
from bow.tiles.program import Program, TileTask


@dataclass(frozen=True)
class Cell:
    """A part of a weight that a tile reads wholly or not at all.

    Attributes:
        name: the weight's.
        box: in indices of the whole weight.
        devices: those that have it, in ascending order.
        is_trained: whether it has a gradient.
        operator: the first that a gradient comes from, whose backward pass is the last; None: none comes.
    """

    name: str
    box: Box
    devices: tuple[int, ...]
    is_trained: bool
    operator: int | None


def cells_of(graph: OperatorGraph, program: Program) -> tuple[Cell, ...]:
    """The cells of all weights, in an order that is the same in every process."""
    readers: dict[str, list[tuple[Box, TileTask]]] = {}
    for task in program.all_tasks:
        for name, box in task.weights:
            readers.setdefault(name, []).append((box, task))
    return tuple(
        cell
        for name, reading in readers.items()
        for cell in _of_weight(name, reading, graph.weights[name].differentiable, program)
    )


def _of_weight(name: str, reading: Sequence[tuple[Box, TileTask]], is_trained: bool, program: Program) -> list[Cell]:
    by_box: dict[Box, list[TileTask]] = {}
    for box, task in reading:
        by_box.setdefault(box, []).append(task)
    found = []
    for cell in cells(list(by_box)):
        tasks = [task for box, of_box in by_box.items() if contains(box, cell) for task in of_box]
        gradients = [task.operator for task in tasks if task.operator in program.backward]
        devices = tuple(sorted({task.device for task in tasks}))
        found.append(Cell(name, cell, devices, is_trained, min(gradients, default=None)))
    return found
