"""What a partition makes of a step: tasks that occupy devices and channels, each with a number of its own."""

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

    FORWARD = 0  # a tile's forward pass
    FORWARD_SUM = 1  # what tiles sum in the middle of the forward pass, such as batch statistics
    TRANSFER = 2  # a part of a tensor to another device, for all tiles there that read it
    GRADIENT = 3  # the gradient of such a part, back
    BACKWARD = 4  # a tile's backward pass
    BACKWARD_SUM = 5  # what tiles sum in the middle of the backward pass
    GATHER = 6  # takes no time: a device has all its gradients of a group of weights
    REDUCTION = 7  # sums the gradients of what some devices have in common of a group of weights
    UPDATE = 8  # the optimizer's step for what a device has of a group of weights
    AVERAGING = 9  # averages the weights of corresponding devices of all learners


@dataclass(frozen=True)
class Task:
    """Something that takes time, or puts others in order.

    Tasks that are ready at the same time run in the order of their identities. These say what a task is and not when
    it was made, and a task's rank is higher than those of all tasks that it waits for; so any way of working out the
    timeline ends with the same one.
    """

    kind: TaskKind
    owner: int  # the number of its operator or group of weights, counted through all learners
    rank: int  # of all tasks of its kind and owner
    tile: int  # the number of its tile, of the tile that made what is sent, of the sum, or 0
    device: int  # where it runs; of a transfer: where to; of a gradient: where from
    code: int  # tells apart what else would be the same
    places: tuple[int, ...]  # the numbers of what it occupies: devices first, then channels
    duration_ns: int
    num_bytes: int = 0  # that are sent, by all members together
    memory_device: int = 0
    memory_bytes: int = 0

    @property
    def identity(self) -> Identity:
        """What orders tasks that are ready at the same time."""
        return self.rank, self.tile, self.device, self.code


@dataclass(frozen=True)
class TaskRanks:
    """Topological ranks of tasks, by kind and owner: the same for every partition."""

    operators: int  # how many there are, counted through all learners
    groups: int  # of weights, the same

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
    """A number of 64 bits for some numbers: a part of a tensor, or members of a sum."""
    code = _START
    for number in numbers:
        code = (code ^ number) * _FACTOR & _MASK
        code ^= code >> 29
    return code
