"""Synchronous parallel SGD: the baseline that couples the batch size to the number of learners."""

import torch

from bow.sync.base import Rows, Synchroniser, Timing


class SSGD(Synchroniser):
    """Gradient averaging: every learner steps with the mean gradient of all learners that had a batch.

    With k learners of batch b, equal batches and a mean loss, this is one learner with batch k*b.

    Example:
        >>> SSGD()
        SSGD(every=1)

    References:
        Budea, TensorBow, 2019, section 2.1.3 and Algorithm 1.
    """

    timing = Timing.BEFORE_STEP

    def __init__(self) -> None:
        super().__init__(every=1)

    def contribute(self, rows: Rows, learners: int, contributors: int) -> None:
        """Sum the gradients; learners without a batch have a gradient of zero."""
        torch.sum(rows.gradients, 0, out=rows.total)

    def apply(self, rows: Rows, learners: int, contributors: int) -> None:
        """Set every learner's gradient to the mean."""
        rows.gradients.copy_((rows.total / max(contributors, 1)).expand_as(rows.gradients))

    def follows(self, learners: int) -> bool:
        """Return True: learners start equal and take equal steps, so that z is the weights of any of them."""
        return True
