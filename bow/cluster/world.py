"""The processes that train together, one for each device, as one of them sees them."""

import datetime
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")

# For a process that takes its time, as rank 0 does when it evaluates; one that is stopped is noticed by its heartbeat
PATIENCE = datetime.timedelta(hours=1)


class PendingSum:
    """A sum over all processes that is under way."""

    def wait(self) -> None:
        """Return once the sum is there; on a GPU, once the current stream is behind it."""


DONE = PendingSum()


class World:
    """The processes of a training. This class itself is a world of one: every collective returns at once.

    All processes call the same methods in the same order, and from the main thread only.
    """

    is_one = True  # whether this process trains alone and needs no collectives
    rank, size = 0, 1
    local_rank, local_size = 0, 1  # among the processes of its machine
    node, nodes = 0, 1  # its machine among all

    def __init__(self) -> None:
        self.sums = 0  # begun so far, over all processes, of tensors of any length
        self.was_aborted = False  # `abort` has ended sums: what they have left in tensors is no sum
        # How many numbers each variable has in a row, padding included, for sums of one variable at a time
        self.variables: Sequence[int] = ()

    @property
    def leads(self) -> bool:
        """Whether this is the process that prints, logs and writes files."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> PendingSum:
        """Begin to add a tensor up over all processes, in place."""
        return DONE

    def sum_with_prefix(self, tensor: Tensor) -> Tensor | None:
        """Add a tensor up over all processes, in place."""
        return None

    def sum_numbers(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def all_gather(self, value: T) -> list[T]:
        """The plain values of all processes, by rank."""
        return [value]

    def broadcast(self, value: T) -> T:
        """The plain value of rank 0, which all others get; theirs are not looked at."""
        return value

    def gather(self, value: T) -> list[T] | None:
        """At rank 0, the values of all processes, tensors included; None elsewhere."""
        return [value]

    def scatter(self, values: Sequence[T] | None) -> T:
        """What rank 0 has for this process; elsewhere nothing is given."""
        assert values is not None
        return values[0]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""

    def node_world(self) -> "World":
        """The processes of this machine as a world; all processes call this."""
        return self

    def abort(self) -> None:
        """End sums that would wait for ever for a process that has gone; from any thread."""

    def close(self) -> None:
        """Leave the process group."""

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


ALONE = World()


class TrialWorld(World):
    """A world of one that takes the code paths of several, for trials of the tuner."""

    is_one = False
