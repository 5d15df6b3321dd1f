"""Local SGD: learners train alone for some rounds and are then averaged."""

import torch

from bow.sync.base import Rows, Synchroniser, Timing


class LocalSGD(Synchroniser):
    """After the steps of a synchronising round, `z = mean_j w_j` and every `w_j = z`.

    Optimizer states are not averaged. Between two synchronisation tasks z does not move.

    Args:
        every: rounds between two synchronisation tasks.

    Example:
        >>> LocalSGD(every=16)
        LocalSGD(every=16)

    References:
        Stich, Local SGD Converges Fast and Communicates Little, 2019.
    """

    timing = Timing.AFTER_STEP

    def __init__(self, every: int = 8) -> None:
        super().__init__(every)

    def contribute(self, rows: Rows, learners: int, contributors: int) -> None:
        """Sum the weights."""
        torch.sum(rows.weights, 0, out=rows.total)

    def apply(self, rows: Rows, learners: int, contributors: int) -> None:
        """Set z and every learner to the mean."""
        torch.div(rows.total, learners, out=rows.z)
        rows.weights.copy_(rows.z.expand_as(rows.weights))
