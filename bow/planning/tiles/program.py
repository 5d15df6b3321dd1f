"""A partition compiled to a program: the tiles of each device, and the tensor parts sent after each operator."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

from bow.planning.problem.box import Box, intersection
from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.problem.partition import Split, tiles_of
from bow.planning.rules.rule import Rules, places
from bow.planning.tiles.operators.calls import Tile, tile_of

K = TypeVar("K")

OutputKey: TypeAlias = tuple[int, int]  # output of a tile of this device: tensor number, tile number


@dataclass(frozen=True)
class TensorPart:
    """The part of a tensor that one tile produces and one device reads; sent once even if several tiles read it."""

    tensor: int
    tile: int  # the producing tile
    box: Box  # in indices of the whole tensor
    source: int  # the producing device
    target: int  # the reading device; equal to `source` if nothing is sent


Parts: TypeAlias = tuple[TensorPart, ...]


@dataclass(frozen=True)
class Fetch:
    """The box of a tensor that a tile reads."""

    tensor: int
    box: Box  # in indices of the whole tensor
    parts: Parts  # that it is assembled from; empty for tensors of the batch, which every device has


@dataclass(frozen=True)
class TileTask:
    """A tile that a device computes, forward and backward."""

    operator: int  # number of the operator in the graph
    number: int  # number of the tile in the operator
    device: int
    tile: Tile
    order: tuple[tuple[str, int], ...]  # [operand]: `input` or `weight`, and its index among those
    inputs: tuple[Fetch | None, ...]  # [input]; None: nothing is read
    weights: tuple[tuple[str, Box], ...]  # [weight]: name, and the box that is read
    outputs: tuple[Box, ...]  # [output]: the box that is computed
    sums: Box | None  # part of the operator's sums that it adds to; None: no sums

    @property
    def parts(self) -> Iterator[TensorPart]:
        return itertools.chain.from_iterable(fetch.parts for fetch in self.inputs if fetch is not None)


SumTiles: TypeAlias = Mapping[Box, Sequence[TileTask]]  # tiles that contribute to each part of an operator's sums


@dataclass(frozen=True)
class TileProgram:
    """A step under a partition."""

    tasks: tuple[tuple[TileTask, ...], ...]  # [operator]: its tiles
    sends: tuple[Parts, ...]  # [operator]: parts of its outputs sent after it has run
    # [operator]: parts whose gradients are sent after its backward pass. It is the first reader, so the last in the
    # backward pass to contribute a gradient.
    gradient_sends: tuple[Parts, ...]
    flows: frozenset[int]  # tensors that the loss's gradient flows through
    backward: frozenset[int]  # operators with a backward pass

    @property
    def all_tasks(self) -> Iterator[TileTask]:
        return itertools.chain.from_iterable(self.tasks)

    @cached_property
    def sums(self) -> tuple[SumTiles, ...]:
        """[operator]: the sums over its tiles."""
        found: list[dict[Box, list[TileTask]]] = [{} for _ in self.tasks]
        for task in self.all_tasks:
            if task.sums is not None:
                found[task.operator].setdefault(task.sums, []).append(task)
        return tuple(found)


def tile_program(graph: OperatorGraph, splits: Sequence[Split], rules: Rules) -> TileProgram:
    # Identical in every process: all follow one order of operators, and therefore of messages.
    flows, backward = _flows(graph)
    tasks: list[tuple[TileTask, ...]] = []
    made: dict[int, tuple[tuple[Box, TileTask], ...]] = {}
    for number, (operator, split) in enumerate(zip(graph.operators, splits, strict=True)):
        tasks.append(tuple(_tasks(graph, number, split, rules, made)))
        for place, tensor in enumerate(operator.outputs):
            made[tensor] = tuple((task.outputs[place], task) for task in tasks[-1])
    sends: list[dict[TensorPart, None]] = [{} for _ in tasks]
    gradient_sends: list[dict[TensorPart, None]] = [{} for _ in tasks]
    seen: set[TensorPart] = set()
    for task in itertools.chain.from_iterable(tasks):
        for part in (part for part in task.parts if part.source != part.target):
            sends[graph.makers[part.tensor][0]].setdefault(part)
            if task.operator in backward and part.tensor in flows and part not in seen:
                seen.add(part)
                gradient_sends[task.operator].setdefault(part)
    return TileProgram(tuple(tasks), tuple(map(tuple, sends)), tuple(map(tuple, gradient_sends)), flows, backward)


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
    for box, task in made:
        common = intersection(box, needed)
        if common is not None:
            yield TensorPart(tensor, task.number, common, task.device, device)


def _flows(graph: OperatorGraph) -> tuple[frozenset[int], frozenset[int]]:
    """Return the tensors that the loss's gradient flows through and the operators with a backward pass."""
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
    """A device's share of a program, by operator (except `tags`)."""

    tasks: tuple[tuple[TileTask, ...], ...]  # its tiles
    sends: tuple[Parts, ...]  # parts sent after the operator has run
    receives: tuple[Parts, ...]  # parts whose receives are posted then
    gradient_sends: tuple[Parts, ...]  # parts whose gradients are sent after the operator's backward pass
    gradient_receives: tuple[Parts, ...]  # parts whose gradient receives are posted then
    last_pieces: Mapping[int, Sequence[OutputKey]]  # own outputs to free after the operator
    last_parts: Mapping[int, Sequence[TensorPart]]  # received parts to free after the operator
    tags: Mapping[TensorPart, int]  # message tags of the parts that are sent


def local_program(graph: OperatorGraph, program: TileProgram, device: int) -> LocalProgram:
    tasks = tuple(tuple(task for task in of if task.device == device) for of in program.tasks)
    pieces: dict[OutputKey, int] = {}
    parts: dict[TensorPart, int] = {}
    for number, operator in enumerate(graph.operators):
        for task in tasks[number]:
            for part in task.parts:
                if part.source == part.target:
                    pieces[part.tensor, part.tile] = number
                else:
                    parts[part] = number
            pieces.update({(tensor, task.number): number for tensor in operator.outputs})
    travelling = itertools.chain.from_iterable(program.sends)
    return LocalProgram(
        tasks,
        _parts_of_device(program.sends, "source", device),
        _parts_of_device(program.sends, "target", device),
        _parts_of_device(program.gradient_sends, "target", device),
        _parts_of_device(program.gradient_sends, "source", device),
        _by_last(pieces),
        _by_last(parts),
        {part: tag for tag, part in enumerate(travelling)},
    )


def _parts_of_device(by_operator: Sequence[Parts], end: str, device: int) -> tuple[Parts, ...]:
    return tuple(tuple(part for part in parts if getattr(part, end) == device) for parts in by_operator)


def _by_last(last: Mapping[K, int]) -> dict[int, list[K]]:
    found: dict[int, list[K]] = {}
    for key, number in last.items():
        found.setdefault(number, []).append(key)
    return found
