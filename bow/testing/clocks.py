"""Vector clocks: check that conflicting accesses of memory are ordered.

Every actor (the host, a stream, a branch of a graph) counts its work. Its clock also holds how much of every other
actor's work it knows to have ended: a wait merges the clock of the event. Two accesses are ordered if the later actor's
clock covers the earlier access (Lamport; Fidge; Mattern). Whether they actually overlapped does not matter, so a
missing wait is found in every run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

Clock: TypeAlias = dict[str, int]  # by actor: how much of its work has ended


def merge(clock: Clock, other: Clock) -> None:
    for actor, time in other.items():
        if time > clock.get(actor, 0):
            clock[actor] = time


@dataclass(frozen=True)
class Access:
    """One read or write."""

    actor: str
    time: int  # the actor's count
    what: object  # the work that it is part of
    writes: bool
    begin: int  # the first byte, counted from the start of the allocation
    end: int  # the byte after the last one

    def conflicts(self, other: "Access") -> bool:
        return (self.writes or other.writes) and self.begin < other.end and other.begin < self.end

    def covered_by(self, clock: Clock) -> bool:
        return clock.get(self.actor, 0) >= self.time


@dataclass
class History:
    """The accesses of one allocation that later ones may have to be ordered with."""

    owner: str  # the actor that allocated it, to which its memory is freed
    accesses: list[Access] = field(default_factory=list)

    def unordered(self, access: Access, clock: Clock) -> Access | None:
        return next((a for a in self.accesses if a.conflicts(access) and not a.covered_by(clock)), None)

    def add(self, access: Access) -> None:
        """Record an access; drop earlier ones that are implied by it."""
        self.accesses = [a for a in self.accesses if not _replaces(access, a)] + [access]

    def unfinished(self, clock: Clock) -> Access | None:
        return next((a for a in self.accesses if not a.covered_by(clock)), None)


def _replaces(new: Access, old: Access) -> bool:
    inside = new.begin <= old.begin and old.end <= new.end
    return inside and (new.writes or (new.actor == old.actor and not old.writes))


def extent(offset: int, sizes: Iterable[int], strides: Iterable[int], itemsize: int) -> tuple[int, int]:
    """Return the bytes between the first and the last element of a strided tensor, gaps included."""
    last = offset
    for size, stride in zip(sizes, strides, strict=True):
        if size == 0:
            return offset * itemsize, offset * itemsize
        last += (size - 1) * stride
    return offset * itemsize, (last + 1) * itemsize
