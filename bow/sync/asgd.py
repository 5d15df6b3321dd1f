"""Asynchronous SGD in a fixed order."""

import torch

from bow.sync.base import Rows, Synchroniser, Timing


class ASGD(Synchroniser):
    """Learners apply their steps to z one after another, and continue from the result.

    In every round, in the order of the learners, `z = z + (w_j after its step - w_j before)` and `w_j = z`.
    A learner's gradient is therefore k - 1 updates old when it is applied, as in asynchronous SGD with equally
    fast learners; the fixed order makes it deterministic. Each learner has its own optimizer state.

    Example:
        >>> ASGD()
        ASGD(every=1)

    References:
        Recht et al., Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent, 2011.
        Dean et al., Large Scale Distributed Deep Networks, 2012.
    """

    timing = Timing.AFTER_STEP
    in_order = True

    def __init__(self) -> None:
        super().__init__(every=1)

    def prepare(self, rows: Rows) -> None:
        """Save the weights before the step."""
        rows.corrections.copy_(rows.weights)

    def restarted(self, rows: Rows, learner: int) -> None:
        """Discard the step of a restarted learner."""
        rows.corrections[learner].copy_(rows.weights[learner])

    def contribute(self, rows: Rows, learners: int, contributors: int) -> None:
        """Sum the steps; the steps themselves stay in `rows.corrections`."""
        torch.sub(rows.weights, rows.corrections, out=rows.corrections)
        torch.sum(rows.corrections, 0, out=rows.total)

    def apply(self, rows: Rows, learners: int, contributors: int) -> None:
        """Set learner j to z plus the steps of learners 0 to j, and add all steps to z."""
        torch.cumsum(rows.corrections, 0, out=rows.weights)
        rows.weights.add_(rows.z if rows.before is None else rows.z + rows.before)
        rows.z.add_(rows.total)
