"""Vector clocks: check that conflicting accesses of memory are ordered.

Every actor (the host, a stream, a branch of a graph) counts its work. Its clock also holds how much of every other
actor's work it knows to have ended: a wait merges the clock of the event. Two accesses are ordered if the later actor's
clock covers the earlier access (Lamport; Fidge; Mattern). Whether they actually overlapped does not matter, so a
missing wait is found in every run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

Clock: TypeAlias = dict[str, int]  # by actor: how much of its work has ended


def merge(clock: Clock, other: Clock) -> None:
    for actor, time in other.items():
        if time > clock.get(actor, 0):
            clock[actor] = time


class Access(NamedTuple):
    """One read or write."""

    actor: str
    time: int  # the actor's count
    what: object  # the work that it is part of
    writes: bool
    begin: int  # the first byte, counted from the start of the allocation
    end: int  # the byte after the last one


@dataclass
class History:
    """The accesses of one allocation that later ones may have to be ordered with."""

    owner: str  # the actor that allocated it, to which its memory is freed
    accesses: list[Access] = field(default_factory=list)

    # Both run for every operator over every access of a matrix of weights: no calls inside.

    def unordered(self, access: Access, clock: Clock) -> Access | None:
        """Return an earlier access that conflicts with this one and is not known to have ended."""
        _, _, _, writes, begin, end = access
        for a in self.accesses:
            if a.begin < end and begin < a.end and (writes or a.writes) and clock.get(a.actor, 0) < a.time:
                return a
        return None

    def add(self, access: Access) -> None:
        """Record an access; drop earlier ones that are implied by it."""
        actor, _, _, writes, begin, end = access
        self.accesses = [
            a
            for a in self.accesses
            if a.begin < begin or end < a.end or not (writes or (a.actor == actor and not a.writes))
        ]
        self.accesses.append(access)

    def unfinished(self, clock: Clock) -> Access | None:
        return next((a for a in self.accesses if clock.get(a.actor, 0) < a.time), None)


def extent(offset: int, sizes: Iterable[int], strides: Iterable[int], itemsize: int) -> tuple[int, int]:
    """Return the bytes between the first and the last element of a strided tensor, gaps included."""
    last = offset
    for size, stride in zip(sizes, strides, strict=True):
        if size == 0:
            return offset * itemsize, offset * itemsize
        last += (size - 1) * stride
    return offset * itemsize, (last + 1) * itemsize
