"""Synchronisers that never average during training: `Independent`, and `Members` for `bow.sweep`."""

import torch

from bow.sync.base import Rows, Synchroniser, Timing


class Independent(Synchroniser):
    """Learners are never synchronised; z is their mean as of the last `Replicas.settle()`.

    `bow.train` settles before every evaluation and at the end.

    The cost of synchronisation is the difference in speed between another synchroniser and this one.

    Example:
        >>> Independent().due(0, learners=4)
        False
    """

    timing = Timing.NEVER

    def __init__(self) -> None:
        super().__init__(every=1)

    def due(self, round_index: int, learners: int) -> bool:
        """Return False."""
        return False

    def contribute(self, rows: Rows, learners: int, contributors: int) -> None:
        """Sum the weights."""
        torch.sum(rows.weights, 0, out=rows.total)

    def apply(self, rows: Rows, learners: int, contributors: int) -> None:
        """Set z to the mean; the learners do not change."""
        torch.div(rows.total, learners, out=rows.z)


class Members(Independent):
    """Rows that are independent models: the caller handles those whose weights are not finite."""

    restarts_diverged = False
