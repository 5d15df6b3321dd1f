"""The processes that train together, one per device, as seen by one of them."""

import contextlib
import datetime
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor

from bow.errors import ClusterError

T = TypeVar("T")

# Long enough for rank 0's evaluation; a process that ended or hangs is detected by its heartbeat.
PATIENCE = datetime.timedelta(hours=1)


class PendingSum:
    """A pending sum over all processes."""

    def wait(self) -> None:
        """Return when the sum is complete; on a GPU, once the current stream is ordered after it."""

    def withdraw(self) -> None:
        """End it after a failure: the contribution is not added up, unless others may have used it."""
        with contextlib.suppress(ClusterError):
            self.wait()


DONE = PendingSum()


class World:
    """The processes of a training. This base class is a world of one process: every collective returns at once."""

    # All processes call the same methods in the same order, and from the main thread only.

    is_one = True  # whether this process trains alone, without collectives
    rank, size = 0, 1
    local_rank, local_size = 0, 1  # among the processes of this machine
    node, nodes = 0, 1  # this machine's number

    def __init__(self) -> None:
        self.sums = 0  # sums of tensors begun over all processes
        self.was_aborted = False  # `abort` ended sums, and left invalid values in their tensors
        # Numbers of elements of a row's variables, padding included, for sums by variable.
        self.variables: Sequence[int] = ()

    @property
    def leads(self) -> bool:
        """Whether this is the process that prints, logs and writes files."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> PendingSum:
        """Begin a sum of a tensor over all processes, in place."""
        return DONE

    def sum_with_prefix(self, tensor: Tensor) -> Tensor | None:
        """Sum a tensor over all processes, in place; return the sum over lower ranks, None at rank 0."""
        return None

    def sum_numbers(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def all_gather(self, value: T) -> list[T]:
        """Return the plain values of all processes, by rank."""
        return [value]

    def broadcast(self, value: T) -> T:
        """Return rank 0's plain value; those of other ranks are ignored."""
        return value

    def gather(self, value: T) -> list[T] | None:
        """Return the values of all processes, tensors included, at rank 0; None elsewhere."""
        return [value]

    def scatter(self, values: Sequence[T] | None) -> T:
        """Return rank 0's value for this process; other ranks pass None."""
        assert values is not None
        return values[0]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""

    def node_world(self) -> "World":
        """Return the world of this machine's processes; collective."""
        return self

    def reunite(self, place: int | None) -> bool:
        """After a failure, connect all processes again if they are at the same place; None: this one cannot go on."""
        return place is not None

    def abort(self) -> None:
        """Abort sums that would wait forever for a process that ended; from any thread."""

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
