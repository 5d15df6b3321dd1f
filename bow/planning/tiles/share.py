"""What one device does in a step."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from bow.planning.problem.operator_graph import OperatorGraph
from bow.planning.tiles.program import Part, Program, TileTask

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
