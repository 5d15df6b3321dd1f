"""Synchronous model averaging (SMA), the default synchroniser."""

from collections.abc import Sequence
from typing import Literal

import torch

from bow.errors import SettingError
from bow.sync import levels as two_levels
from bow.sync.base import Rows, Synchroniser, Timing
from bow.values import number


class SMA(Synchroniser):
    r"""Synchronous model averaging with momentum on the central model.

    With k learners in all, in every synchronising round, in this order::

        c_j  = alpha * (w_j - z)               w_j before its step
        w_j  = w_j - (optimizer's step) - c_j
        z'   = z + sum_j c_j + mu * (z - z_prev);   z_prev = z;   z = z'

    Only `sum_j c_j` is communicated between devices, and it does not depend on the learning tasks of the round:
    the AllReduce overlaps them, without staleness.

    Args:
        alpha: how strongly learners are pulled together; `None` is 1/k and follows k when learners are added or
            removed. With one learner in all and `None`, z is the learner's weights and bow equals plain PyTorch.
        mu: momentum of the central model, at least 0 and below 1.
        every: rounds between two synchronisation tasks.
        restart: `"drop"`: after the learning rate fell to half of its maximum since the last restart or lower,
            z is copied into every learner after the next synchronisation task (CROSSBOW's code); `None`: never.
        levels: 1: all learners follow z. 2: those of a device follow a reference model of their device, and z averages
            the reference models; alpha defaults to 1/(learners of the device + 1) within a device and 1/(devices + 1)
            between devices. With one device there is one level.

    Raises:
        SettingError: a value outside its range, or (from `check`) an `alpha` that is unstable for the number of
            learners: without gradients the deviation of the mean and the velocity of z follow
            `[[1 - alpha (1 + k), -mu], [k alpha, mu]]`, stable exactly when `alpha < 2 (1 + mu) / (1 + k + mu)`.

    Example:
        >>> SMA(alpha=0.1, mu=0.9).check(8)
        >>> round(SMA(mu=0.9).stability_limit(8), 3)
        0.384

    References:
        Koliousis et al., CROSSBOW: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers, 2019.
        Budea, TensorBow: Supporting Small-Batch Training in TensorFlow, 2019, Algorithm 2.
    """

    timing = Timing.WITH_STEP
    own_state = frozenset({two_levels.REFERENCE, two_levels.MOVE})

    def __init__(
        self,
        alpha: float | None = None,
        mu: float = 0.5,
        every: int = 1,
        restart: Literal["drop"] | None = "drop",
        levels: int = 1,
    ) -> None:
        super().__init__(every)
        if alpha is not None:
            alpha = number("alpha", alpha, above=0, also="None for 1/learners")
        mu = number("mu", mu, least=0, below=1)
        if restart not in ("drop", None):
            raise SettingError(f'restart must be "drop" or None, got {restart!r}')
        if levels not in (1, 2):
            raise SettingError(f"levels must be 1 or 2, got {levels!r}")
        self.alpha = alpha
        self.mu = mu
        self.restart = restart
        self.levels = levels

    @property
    def restarts_on_drop(self) -> bool:
        """Whether learners are set to z when the learning rate drops."""
        return self.restart == "drop"

    def stability_limit(self, learners: int) -> float:
        """Return the value that `alpha` must be below with this many learners."""
        return 2 * (1 + self.mu) / (1 + learners + self.mu)

    def check(self, learners: int, by_device: Sequence[int] = ()) -> None:
        """Reject an `alpha` at or above the stability limit."""
        if self.levels == 2 and len(by_device) > 1:
            two_levels.check(by_device, self.alpha, self.mu)
            return
        limit = self.stability_limit(learners)
        if self.alpha is not None and self.alpha >= limit:
            raise SettingError(
                f"alpha={self.alpha:g} is unstable with {learners} learners and mu={self.mu:g}: it must be below "
                f"{limit:.4g}; leave alpha out for 1/learners"
            )

    def due(self, round_index: int, learners: int) -> bool:
        """Return True in every `every`-th round, unless there is nothing to average."""
        return not self.follows(learners) and super().due(round_index, learners)

    def follows(self, learners: int) -> bool:
        """Return True for one learner with the default alpha: there is nothing to average."""
        return learners == 1 and self.alpha is None

    def start(self, rows: Rows) -> None:
        """Set `z_prev = z`: the central model starts without momentum."""
        if "z_prev" in rows.state:
            rows.state["z_prev"].copy_(rows.z)  # in place: a captured graph reads it there
        else:
            rows.state["z_prev"] = rows.z.clone()
        if self.is_in_levels(rows):
            two_levels.start(rows)

    def is_in_levels(self, rows: Rows) -> bool:
        """Return whether learners follow the reference model of their device."""
        return self.levels == 2 and len(rows.by_device) > 1

    def start_own(self, rows: Rows) -> None:
        """Set the reference model to z."""
        if self.is_in_levels(rows):
            two_levels.restart(rows)

    def restart_all(self, rows: Rows) -> None:
        """Restart all learners, and reference models, from z."""
        super().restart_all(rows)
        if self.is_in_levels(rows):
            two_levels.restart(rows)

    def contribute(self, rows: Rows, learners: int, contributors: int) -> None:
        """Compute `sum_j alpha (w_j - z)`; the corrections stay in `rows.corrections` until `apply`."""
        if self.is_in_levels(rows):
            two_levels.contribute(rows, self.alpha)
            return
        alpha = 1 / learners if self.alpha is None else self.alpha
        corrections = rows.corrections
        torch.sub(rows.weights, rows.z, out=corrections)
        corrections.mul_(alpha)
        torch.sum(corrections, 0, out=rows.total)

    def apply(self, rows: Rows, learners: int, contributors: int) -> None:
        """Pull the learners together, and move z."""
        if self.is_in_levels(rows):
            two_levels.apply(rows)
        else:
            rows.weights.sub_(rows.corrections)
        z, z_prev, total = rows.z, rows.state["z_prev"], rows.total
        total.add_(z)
        if self.mu:
            total.add_(z - z_prev, alpha=self.mu)
        z_prev.copy_(z)
        z.copy_(total)
