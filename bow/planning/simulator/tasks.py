"""What a strategy makes of a step: tasks that occupy devices and channels, each with a number of its own."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

_MASK = 2**64 - 1
_FACTOR = 0x9E3779B97F4A7C15
_START = 0x243F6A8885A308D3

Identity: TypeAlias = tuple[int, int, int, int]
"""Rank, tile, device and code of a task: no other of the same step has all four."""


class TaskKind(IntEnum):
    """What a task does."""

    FORWARD = 0
    """A tile's forward pass."""
    FORWARD_SUM = 1
    """What tiles sum in the middle of the forward pass, such as batch statistics."""
    TRANSFER = 2
    """A part of a tensor to another device, for all tiles there that read it."""
    GRADIENT = 3
    """The gradient of such a part, back."""
    BACKWARD = 4
    """A tile's backward pass."""
    BACKWARD_SUM = 5
    """What tiles sum in the middle of the backward pass."""
    GATHER = 6
    """Takes no time: a device has all its gradients of a group of weights."""
    REDUCTION = 7
    """Sums the gradients of what some devices have in common of a group of weights."""
    UPDATE = 8
    """The optimizer's step for what a device has of a group of weights."""
    AVERAGING = 9
    """Averages the weights of corresponding devices of all learners."""


@dataclass(frozen=True)
class Task:
    """Something that takes time, or puts others in order.

    Tasks that are ready at the same time run in the order of their identities. These say what a task is and not when
    it was made, and a task's rank is higher than those of all tasks that it waits for; so any way of working out the
    timeline ends with the same one.

    Attributes:
        kind: what it does.
        owner: the number of its operator or group of weights, counted through all learners.
        rank: of all tasks of its kind and owner.
        tile: the number of its tile, of the tile that made what is sent, of the sum, or 0.
        device: where it runs; of a transfer: where to; of a gradient: where from.
        code: tells apart what else would be the same.
        places: the numbers of what it occupies: devices first, then channels.
        duration_ns: how long.
        num_bytes: that are sent, by all members together.
        memory_device: where its result lies.
        memory_bytes: how large that is.
    """

    kind: TaskKind
    owner: int
    rank: int
    tile: int
    device: int
    code: int
    places: tuple[int, ...]
    duration_ns: int
    num_bytes: int = 0
    memory_device: int = 0
    memory_bytes: int = 0

    @property
    def identity(self) -> Identity:
        """What orders tasks that are ready at the same time."""
        return self.rank, self.tile, self.device, self.code


@dataclass(frozen=True)
class Ranks:
    """Topological ranks of tasks, by kind and owner: the same for every strategy.

    Attributes:
        operators: how many there are, counted through all learners.
        groups: of weights, the same.
    """

    operators: int
    groups: int

    def of(self, kind: TaskKind, owner: int) -> int:
        """The rank of the tasks of a kind and an owner."""
        if kind <= TaskKind.TRANSFER:
            return 3 * owner + kind
        if kind <= TaskKind.BACKWARD_SUM:
            return 3 * (2 * self.operators - 1 - owner) + kind - TaskKind.GRADIENT
        if kind <= TaskKind.UPDATE:
            return 6 * self.operators + 3 * owner + kind - TaskKind.GATHER
        return 6 * self.operators + 3 * self.groups

    def operator(self, rank: int) -> int | None:
        """Whose tasks have a rank; None: they are of no operator."""
        if rank < 3 * self.operators:
            return rank // 3
        return 2 * self.operators - 1 - rank // 3 if rank < 6 * self.operators else None

    def group(self, rank: int) -> int | None:
        """The group of weights whose tasks have a rank; None: they are of no group."""
        number = (rank - 6 * self.operators) // 3
        return number if 0 <= number < self.groups else None


def code_of(numbers: Iterable[int]) -> int:
    """A number of 64 bits for some numbers: a part of a tensor, or members of a sum.

    Example:
        >>> code_of([0, 4]) == code_of([4, 0])
        False
    """
    code = _START
    for number in numbers:
        code = (code ^ number) * _FACTOR & _MASK
        code ^= code >> 29
    return code
