"""DiLoCo: an outer optimizer on the mean progress of learners that train alone for many rounds."""

import torch

from bow.sync.base import Rows, Synchroniser, Timing
from bow.values import number


class DiLoCo(Synchroniser):
    """Local training with an outer step of SGD with Nesterov momentum on the central model.

    After the steps of a synchronising round::

        delta = z - mean_j w_j
        v     = outer_momentum * v + delta
        z     = z - outer_lr * (delta + outer_momentum * v);   w_j = z

    which is `torch.optim.SGD(nesterov=True)` with `delta` as its gradient. Inner optimizer states stay.

    Args:
        every: rounds between two synchronisation tasks.
        outer_lr: learning rate of the outer step.
        outer_momentum: momentum of the outer step, at least 0 and below 1.

    Raises:
        SettingError: a value outside its range.

    Example:
        >>> DiLoCo(every=64).outer_lr
        0.7

    References:
        Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023.
    """

    timing = Timing.AFTER_STEP

    def __init__(self, every: int = 32, outer_lr: float = 0.7, outer_momentum: float = 0.9) -> None:
        super().__init__(every)
        self.outer_lr = number("outer_lr", outer_lr, above=0)
        self.outer_momentum = number("outer_momentum", outer_momentum, least=0, below=1)

    def start(self, rows: Rows) -> None:
        """Set the outer velocity to zero."""
        rows.state["velocity"] = torch.zeros_like(rows.z)

    def contribute(self, rows: Rows, learners: int, contributors: int) -> None:
        """Sum the weights."""
        torch.sum(rows.weights, 0, out=rows.total)

    def apply(self, rows: Rows, learners: int, contributors: int) -> None:
        """Step z along the mean progress, and set every learner to it."""
        velocity = rows.state["velocity"]
        delta = rows.z - rows.total / learners
        velocity.mul_(self.outer_momentum).add_(delta)
        rows.z.sub_(delta.add_(velocity, alpha=self.outer_momentum), alpha=self.outer_lr)
        rows.weights.copy_(rows.z.expand_as(rows.weights))
