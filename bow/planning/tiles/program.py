"""A partition as a program: which tiles each device computes, and which parts of tensors travel when.

Everything here is worked out before the first step, alike in every process: all go through the operators in one
order, and so through the same messages in the same order.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

from bow.planning.problem.box import Box, intersection
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split, tiles_of
from bow.planning.rules.mapped import places
from bow.planning.rules.rule import Rules
from bow.planning.tiles.operators.calls import Tile, tile_of

K = TypeVar("K")

Piece: TypeAlias = tuple[int, int]  # what a tile of this device makes of a tensor: the tensor's number and the tile's


@dataclass(frozen=True)
class TensorPart:
    """What one tile makes and one device reads of a tensor. It travels once, whoever reads it there."""

    tensor: int  # its number
    tile: int  # the tile of the tensor's operator that makes it
    box: Box  # in indices of the whole tensor
    source: int  # the device that has it
    target: int  # the device that reads it; the same one where nothing has to travel


Parts: TypeAlias = tuple[TensorPart, ...]


@dataclass(frozen=True)
class Fetch:
    """What a tile reads of a tensor."""

    tensor: int  # its number
    box: Box  # in indices of the whole tensor
    # What it is put together of; none where the tensor comes with the batch, which every device has.
    parts: Parts


@dataclass(frozen=True)
class TileTask:
    """A tile that a device computes, forward and backward."""

    operator: int  # its number in the graph
    number: int  # of the tile, among those of the operator
    device: int  # where
    tile: Tile
    # Of the operands: whether each is an input or a weight, and its number among them.
    order: tuple[tuple[str, int], ...]
    inputs: tuple[Fetch | None, ...]  # by input of the operator; None: nothing
    weights: tuple[tuple[str, Box], ...]  # by weight of the operator: its name, and the box that is read
    outputs: tuple[Box, ...]  # by output of the operator: the box that is made
    sums: Box | None  # which part of the operator's sums it adds to; None: there are none

    @property
    def parts(self) -> Iterator[TensorPart]:
        """All that it reads of other tiles."""
        return itertools.chain.from_iterable(fetch.parts for fetch in self.inputs if fetch is not None)


SumTiles: TypeAlias = Mapping[Box, Sequence[TileTask]]  # by part of an operator's sums: the tiles that add to it


@dataclass(frozen=True)
class TileProgram:
    """A step under a partition."""

    tasks: tuple[tuple[TileTask, ...], ...]  # by operator: its tiles
    sent: tuple[Parts, ...]  # by operator: the parts of what it makes that travel, once it has run
    # By operator: the parts whose gradients travel back, once its backward pass has run; it is the first that reads
    # them, and so the last whose gradient they wait for.
    returned: tuple[Parts, ...]
    flows: frozenset[int]  # the tensors that the loss's gradient flows through
    backward: frozenset[int]  # the operators that have a backward pass

    @property
    def all_tasks(self) -> Iterator[TileTask]:
        return itertools.chain.from_iterable(self.tasks)

    @cached_property
    def sums(self) -> tuple[SumTiles, ...]:
        """By operator: what its tiles sum in the middle of it."""
        found: list[dict[Box, list[TileTask]]] = [{} for _ in self.tasks]
        for task in self.all_tasks:
            if task.sums is not None:
                found[task.operator].setdefault(task.sums, []).append(task)
        return tuple(found)


def tile_program(graph: OperatorGraph, splits: Sequence[Split], rules: Rules) -> TileProgram:
    """Work out what each device does in a step."""
    flows, backward = _flows(graph)
    tasks: list[tuple[TileTask, ...]] = []
    made: dict[int, tuple[tuple[Box, TileTask], ...]] = {}
    for number, (operator, split) in enumerate(zip(graph.operators, splits, strict=True)):
        tasks.append(tuple(_tasks(graph, number, split, rules, made)))
        for place, tensor in enumerate(operator.outputs):
            made[tensor] = tuple((task.outputs[place], task) for task in tasks[-1])
    sent: list[dict[TensorPart, None]] = [{} for _ in tasks]
    returned: list[dict[TensorPart, None]] = [{} for _ in tasks]
    seen: set[TensorPart] = set()
    for task in itertools.chain.from_iterable(tasks):
        for part in (part for part in task.parts if part.source != part.target):
            sent[graph.makers[part.tensor][0]].setdefault(part)
            if task.operator in backward and part.tensor in flows and part not in seen:
                seen.add(part)
                returned[task.operator].setdefault(part)
    return TileProgram(tuple(tasks), tuple(map(tuple, sent)), tuple(map(tuple, returned)), flows, backward)


def _tasks(
    graph: OperatorGraph,
    number: int,
    split: Split,
    rules: Rules,
    made: Mapping[int, Sequence[tuple[Box, TileTask]]],
) -> Iterator[TileTask]:
    operator = graph.operators[number]
    rule = rules.of(operator)
    for place, (box, device) in enumerate(zip(tiles_of(graph, operator, split), split.devices, strict=True)):
        fetches = []
        for tensor, needed in zip(operator.inputs, rule.input_boxes(operator, graph, box), strict=True):
            parts = () if needed is None else tuple(_parts(tensor, needed, made.get(tensor, ()), device))
            fetches.append(None if needed is None else Fetch(tensor, needed, parts))
        yield TileTask(
            number,
            place,
            device,
            tile_of(graph, operator, rule, box),
            tuple(places(operator)),
            tuple(fetches),
            tuple(zip(operator.weights, rule.weight_boxes(operator, graph, box), strict=True)),
            rule.output_boxes(operator, graph, box),
            rule.sum_box(operator, graph, box) if rule.sums(operator) else None,
        )


def _parts(tensor: int, needed: Box, made: Sequence[tuple[Box, TileTask]], device: int) -> Iterator[TensorPart]:
    """What a box of a tensor is put together of."""
    for box, task in made:
        common = intersection(box, needed)
        if common is not None:
            yield TensorPart(tensor, task.number, common, task.device, device)


def _flows(graph: OperatorGraph) -> tuple[frozenset[int], frozenset[int]]:
    """The tensors that the loss's gradient flows through, and the operators that have a backward pass."""
    flows, backward = {graph.loss}, set()
    for number in range(len(graph.operators) - 1, -1, -1):
        operator = graph.operators[number]
        read = [tensor for tensor in operator.inputs if graph.tensors[tensor].differentiable]
        trained = any(graph.weights[name].differentiable for name in operator.weights)
        if flows.intersection(operator.outputs) and (read or trained):
            backward.add(number)
            flows.update(read)
    return frozenset(flows), frozenset(backward)


@dataclass(frozen=True)
class LocalProgram:
    """A device's share of a program. Everything is by operator."""

    tasks: tuple[tuple[TileTask, ...], ...]  # the tiles that it computes
    sends: tuple[Parts, ...]  # the parts that it sends once the operator has run
    receives: tuple[Parts, ...]  # the parts that it begins to receive then
    gradient_sends: tuple[Parts, ...]  # the parts whose gradients it sends once the operator's backward pass has run
    gradient_receives: tuple[Parts, ...]  # the parts whose gradients it begins to receive then
    last_pieces: Mapping[int, Sequence[Piece]]  # what it has made itself and does not read behind the operator
    last_parts: Mapping[int, Sequence[TensorPart]]  # what it has received and does not read behind the operator
    tags: Mapping[TensorPart, int]  # a number for each part that travels


def local_program(graph: OperatorGraph, program: TileProgram, device: int) -> LocalProgram:
    """What a device does of a program."""
    tasks = tuple(tuple(task for task in of if task.device == device) for of in program.tasks)
    pieces: dict[Piece, int] = {}
    parts: dict[TensorPart, int] = {}
    for number, operator in enumerate(graph.operators):
        for task in tasks[number]:
            for part in task.parts:
                if part.source == part.target:
                    pieces[part.tensor, part.tile] = number
                else:
                    parts[part] = number
            pieces.update({(tensor, task.number): number for tensor in operator.outputs})
    travelling = itertools.chain.from_iterable(program.sent)
    return LocalProgram(
        tasks,
        _those(program.sent, "source", device),
        _those(program.sent, "target", device),
        _those(program.returned, "target", device),
        _those(program.returned, "source", device),
        _by_last(pieces),
        _by_last(parts),
        {part: tag for tag, part in enumerate(travelling)},
    )


def _those(by_operator: Sequence[Parts], end: str, device: int) -> tuple[Parts, ...]:
    return tuple(tuple(part for part in parts if getattr(part, end) == device) for parts in by_operator)


def _by_last(last: Mapping[K, int]) -> dict[int, list[K]]:
    found: dict[int, list[K]] = {}
    for key, number in last.items():
        found.setdefault(number, []).append(key)
    return found
