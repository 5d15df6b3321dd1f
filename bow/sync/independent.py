"""Learners that are never averaged while they train: `Independent`, and `Members` for `bow.sweep`."""

import torch

from bow.sync.base import Rows, Synchroniser, Timing


class Independent(Synchroniser):
    """Learners never meet; z is their mean as of the last `Replicas.settle()`.

    `bow.train` settles before every evaluation and at the end.

    What synchronisation costs is what another synchroniser loses against this one.

    Example:
        >>> Independent().due(0, learners=4)
        False
    """

    timing = Timing.NEVER

    def __init__(self) -> None:
        super().__init__(every=1)

    def due(self, round_index: int, learners: int) -> bool:
        """Never."""
        return False

    def contribute(self, rows: Rows, learners: int, contributors: int) -> None:
        """The sum of the weights."""
        torch.sum(rows.weights, 0, out=rows.total)

    def apply(self, rows: Rows, learners: int, contributors: int) -> None:
        """Set z to the mean; the learners stay as they are."""
        torch.div(rows.total, learners, out=rows.z)


class Members(Independent):
    """Rows that are models of their own: one that leaves the finite numbers is left as it is, for its owner to end."""

    restarts_diverged = False
