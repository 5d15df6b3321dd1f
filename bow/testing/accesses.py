"""Memory accesses of operators, and a check that events order conflicting ones."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef

from bow.testing.clocks import Access, Clock, History, extent, merge

HOST = "host"
CALLER = "caller"
COLLECT_EVERY = 16  # operators: looking at all live memory takes as long as some operators

_aten: Any = torch.ops.aten

# Arguments that operators write to although their schemas do not say so.
UNDECLARED = {_aten.native_batch_norm.default: ("running_mean", "running_var")}


def accessed(
    function: OpOverload, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that an operator reads and writes, by its schema; a view accesses nothing."""
    is_view, written = _roles(function)
    if is_view:
        return [], []
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    for index, (name, is_written) in enumerate(written):
        given = arguments[index] if index < len(arguments) else keywords.get(name)
        # An argument that is written to may be read as well; a write is ordered with everything that a read would be.
        (writes if is_written else reads).extend(tensors_in(given))
    return reads, writes


@functools.cache
def _roles(function: OpOverload) -> tuple[bool, tuple[tuple[str, bool], ...]]:
    schema = function._schema
    written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    written.update(UNDECLARED.get(function, ()))
    is_view = not written and any(result.alias_info is not None for result in schema.returns)
    return is_view, tuple((argument.name, argument.name in written) for argument in schema.arguments)


class MemoryRange(NamedTuple):
    """Where in memory a tensor lies."""

    tensor: Tensor
    key: int
    begin: int
    end: int

    @classmethod
    def of(cls, tensor: Tensor) -> "MemoryRange":
        begin, end = extent(int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor.itemsize)
        return cls(tensor, key_of(tensor), begin, end)


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for each in value for tensor in tensors_in(each)]


class RaceError(AssertionError):
    """Two unordered accesses of the same memory, or memory that is freed while in use."""


class AccessLog:
    """Accesses of live memory, and the clocks of all actors."""

    def __init__(self) -> None:
        self.host: Clock = {}  # what the host knows to have ended
        self.clocks: dict[str, Clock] = {HOST: self.host}
        self._histories: dict[int, tuple[StorageWeakRef, History]] = {}
        self._weak: dict[int, int] = {}  # by key: the weak reference's storage
        self._pinned: set[int] = set()
        self._turn = 0

    def clock(self, actor: str) -> Clock:
        return self.clocks.setdefault(actor, {})

    def knows(self, tensor: Tensor) -> bool:
        return key_of(tensor) in self._histories

    def pin(self, tensor: Tensor) -> None:
        self._pinned.add(key_of(tensor))
        self.allocate(HOST, [tensor])

    def is_pinned(self, tensor: Tensor) -> bool:
        return key_of(tensor) in self._pinned

    def used_bytes(self) -> int:
        self.collect()
        return sum(max((a.end for a in h.accesses), default=0) for _, h in self._histories.values())

    def tick(self, actor: str, what: object, reads: Sequence[MemoryRange], writes: Sequence[MemoryRange]) -> None:
        """Check and record the accesses of one piece of work."""
        if not reads and not writes:
            return  # clocks only count accesses
        clock = self.clock(actor)
        merge(clock, self.clocks[HOST])  # what the host knew to have ended when it issued this
        clock[actor] = now = clock.get(actor, 0) + 1
        for places, is_write in ((reads, False), (writes, True)):
            for tensor, key, begin, end in places:
                access = Access(actor, now, what, is_write, begin, end)
                if key not in self._histories:  # allocated before `issuing`
                    self.allocate(CALLER, [tensor])
                _, history = self._histories[key]
                earlier = history.unordered(access, clock)
                if earlier is not None:
                    raise RaceError(
                        f"{what} on {actor} {'writes' if is_write else 'reads'} bytes {begin} to {end} of a tensor "
                        f"{tuple(tensor.shape)} while {earlier.what} on {earlier.actor} may still be "
                        f"{'writing' if earlier.writes else 'reading'} them; no event orders the two"
                    )
                history.add(access)

    def allocate(self, actor: str, tensors: Sequence[Tensor]) -> None:
        """Register new memory of tensors, which is freed to this actor."""
        for tensor in tensors:
            reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._histories[key_of(tensor)] = (reference, History(actor))
            self._weak[key_of(tensor)] = reference.cdata

    def collect_sometimes(self) -> None:
        """Collect at one operator in a few. Any wait has to collect before its clock learns what has ended."""
        self._turn += 1
        if self._turn % COLLECT_EVERY == 0:
            self.collect()

    def collect(self) -> None:
        """Check freed allocations: their owner may reuse the memory at once."""
        expired = torch.UntypedStorage._expired  # the method of StorageWeakRef is slow here
        if not any(map(expired, self._weak.values())):
            return
        for key in [key for key, weak in self._weak.items() if expired(weak)]:
            del self._weak[key]
            _, history = self._histories.pop(key)
            self._pinned.discard(key)
            over = dict(self.clocks[HOST])  # a graph's memory is freed with the graph, by the host
            merge(over, self.clocks.get(history.owner, {}))
            left = history.unfinished(over)
            if left is not None:
                raise RaceError(
                    f"memory of {history.owner} was given back while {left.what} on {left.actor} may still use it; "
                    "keep it until that is over"
                )


def key_of(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
