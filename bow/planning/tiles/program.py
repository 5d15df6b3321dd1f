"""A strategy as a program: which tiles each device computes, and which parts of tensors travel when."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from bow.planning.problem.box import Box, intersection
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split, tiles_of
from bow.planning.rules.mapped import places
from bow.planning.rules.rule import Rules
from bow.planning.tiles.calls.tile import Tile, tile_of


@dataclass(frozen=True)
class Part:
    """What one tile makes and one device reads of a tensor. It travels once, whoever reads it there.

    Attributes:
        tensor: its number.
        tile: the tile of the tensor's operator that makes it.
        box: in indices of the whole tensor.
        source: the device that has it.
        target: the device that reads it; the same one where nothing has to travel.
    """

    tensor: int
    tile: int
    box: Box
    source: int
    target: int


@dataclass(frozen=True)
class Fetch:
    """What a tile reads of a tensor.

    Attributes:
        tensor: its number.
        box: in indices of the whole tensor.
        parts: what it is put together of; none where the tensor comes with the batch, which every device has.
    """

    tensor: int
    box: Box
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class TileTask:
    """A tile that a device computes, forward and backward.

    Attributes:
        operator: its number in the graph.
        number: of the tile, among those of the operator.
        device: where.
        tile: what its computation is told.
        order: of the operands: whether each is an input or a weight, and its number among them.
        inputs: by input of the operator; None: nothing.
        weights: by weight of the operator: its name, and the box that is read.
        outputs: by output of the operator: the box that is made.
        sums: which part of the operator's sums it adds to; None: there are none.
    """

    operator: int
    number: int
    device: int
    tile: Tile
    order: tuple[tuple[str, int], ...]
    inputs: tuple[Fetch | None, ...]
    weights: tuple[tuple[str, Box], ...]
    outputs: tuple[Box, ...]
    sums: Box | None


@dataclass(frozen=True)
class Program:
    """A step under a strategy.

    Attributes:
        tasks: by operator: its tiles.
        sent: by operator: the parts of what it makes that travel, once it has run.
        returned: by operator: the parts whose gradients travel back, once its backward pass has run; it is the first
            that reads them, and so the last whose gradient they wait for.
        flows: the tensors that the loss's gradient flows through.
        backward: the operators that have a backward pass.
    """

    tasks: tuple[tuple[TileTask, ...], ...]
    sent: tuple[tuple[Part, ...], ...]
    returned: tuple[tuple[Part, ...], ...]
    flows: frozenset[int]

    backward: frozenset[int]

    @property
    def all_tasks(self) -> Iterator[TileTask]:
        """Of all operators, in their order."""
        return itertools.chain.from_iterable(self.tasks)


def program_of(graph: OperatorGraph, splits: Sequence[Split], rules: Rules) -> Program:
    """Work out what each device does in a step."""
    flows, backward = _flows(graph)
    tasks: list[tuple[TileTask, ...]] = []
    made: dict[int, tuple[tuple[Box, TileTask], ...]] = {}
    for number, (operator, split) in enumerate(zip(graph.operators, splits, strict=True)):
        tasks.append(tuple(_tasks(graph, number, split, rules, made)))
        for place, tensor in enumerate(operator.outputs):
            made[tensor] = tuple((task.outputs[place], task) for task in tasks[-1])
    makers = graph.makers
    sent: list[dict[Part, None]] = [{} for _ in tasks]
    returned: list[dict[Part, None]] = [{} for _ in tasks]
    seen: set[Part] = set()
    for task in itertools.chain.from_iterable(tasks):
        for part in _travelling(task):
            sent[makers[part.tensor]].setdefault(part)
            if task.operator in backward and part.tensor in flows and part not in seen:
                seen.add(part)
                returned[task.operator].setdefault(part)
    return Program(tuple(tasks), tuple(map(tuple, sent)), tuple(map(tuple, returned)), flows, backward)


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


def _parts(tensor: int, needed: Box, made: Sequence[tuple[Box, TileTask]], device: int) -> Iterator[Part]:
    """What a box of a tensor is put together of."""
    for box, task in made:
        common = intersection(box, needed)
        if common is not None:
            yield Part(tensor, task.number, common, task.device, device)


def _travelling(task: TileTask) -> Iterator[Part]:
    """What a task reads from other devices."""
    for fetch in task.inputs:
        if fetch is not None:
            yield from (part for part in fetch.parts if part.source != part.target)


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


Piece: TypeAlias = tuple[int, int]
"""What a tile of this device makes of a tensor: the tensor's number and the tile's."""

Parts: TypeAlias = tuple[Part, ...]

K = TypeVar("K")


@dataclass(frozen=True)
class Share:
    """A device's share of a program. Everything is by operator.

    Attributes:
        tasks: the tiles that it computes.
        sends: the parts that it sends once the operator has run.
        receives: the parts that it begins to receive then.
        gradient_sends: the parts whose gradients it sends once the operator's backward pass has run.
        gradient_receives: the parts whose gradients it begins to receive then.
        last_pieces: what it has made itself and does not read behind the operator.
        last_parts: what it has received and does not read behind the operator.
        tags: a number for each part that travels.
    """

    tasks: tuple[tuple[TileTask, ...], ...]
    sends: tuple[Parts, ...]
    receives: tuple[Parts, ...]
    gradient_sends: tuple[Parts, ...]
    gradient_receives: tuple[Parts, ...]
    last_pieces: Mapping[int, Sequence[Piece]]
    last_parts: Mapping[int, Sequence[Part]]
    tags: Mapping[Part, int]


def share_of(graph: OperatorGraph, program: Program, device: int) -> Share:
    """What a device does of a program."""
    tasks = tuple(tuple(task for task in of if task.device == device) for of in program.tasks)
    pieces: dict[Piece, int] = {}
    parts: dict[Part, int] = {}
    for number, operator in enumerate(graph.operators):
        for task in tasks[number]:
            for part in (part for fetch in task.inputs if fetch is not None for part in fetch.parts):
                if part.source == part.target:
                    pieces[part.tensor, part.tile] = number
                else:
                    parts[part] = number
            pieces.update({(tensor, task.number): number for tensor in operator.outputs})
    travelling = itertools.chain.from_iterable(program.sent)
    return Share(
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
