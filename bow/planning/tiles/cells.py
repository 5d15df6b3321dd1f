"""Which device has which part of which weight.

Tiles may read boxes of a weight that overlap: the steps of an unrolled layer may each be split in another way. The
borders of all boxes cut the weight into cells. A device has the cells that its tiles read; a cell that several devices
have is a replica on each, and its gradient is summed over them. What no tile reads, such as positions behind the end of
all samples, is on the device of the first reader: its gradient is zero, but weight decay and momentum change it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bow.planning.problem.box import Box, cells, contains, whole
from bow.planning.problem.operator_graph import OperatorGraph, TensorShape
from bow.planning.tiles.program import Program, TileTask


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
        cell for name, reading in readers.items() for cell in _of_weight(name, reading, graph.weights[name], program)
    )


def _of_weight(
    name: str, reading: Sequence[tuple[Box, TileTask]], weight: TensorShape, program: Program
) -> Iterator[Cell]:
    by_box: dict[Box, list[TileTask]] = {}
    by_task = [task for _, task in reading]
    for box, task in reading:
        by_box.setdefault(box, []).append(task)
    for cell in cells([*by_box, whole(weight.shape)]):
        tasks = [task for box, of_box in by_box.items() if contains(box, cell) for task in of_box]
        gradients = [task.operator for task in tasks or by_task if task.operator in program.backward]
        devices = tuple(sorted({task.device for task in tasks or by_task[:1]}))
        yield Cell(name, cell, devices, weight.differentiable, min(gradients, default=None))
