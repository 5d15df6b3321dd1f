"""What the engines need that carry out SGD with momentum and SMA themselves, in one pass over the rows."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bow.engines.outcome import LearningConfig
from bow.replicas import LearnerGroup
from bow.sync import EASGD, SMA, Synchroniser


class Numbers(NamedTuple):
    """The numbers of a round, which may change from one to the next."""

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    alpha: float
    mu: float


class SgdState:
    """The learners of a device whose optimizer is plain `torch.optim.SGD` and whose synchroniser is `SMA`."""

    def __init__(self, group: LearnerGroup, sync: SMA) -> None:
        self._group = group
        self._sync = sync
        self._momenta = torch.zeros_like(group.matrix.weights)
        self._rows = list(self._momenta)

    @property
    def settings(self) -> dict[str, Any]:
        """The optimizer's only group; loading a state puts another dictionary in its place."""
        settings: dict[str, Any] = self._group.optimizer.optimizer.param_groups[0]
        return settings

    @property
    def momenta(self) -> Tensor:
        """Momentum buffers `[learners, parameters]`; the optimizer's own state from now on.

        A buffer that is not there yet is zero: the first step of `torch.optim.SGD` sets it to the gradient.
        """
        optimizer = self._group.optimizer.optimizer
        for row, parameter in zip(self._rows, self.settings["params"], strict=True):
            state: dict[str, Any] = optimizer.state[parameter]
            buffer = state.get("momentum_buffer")
            if buffer is not row:
                row.zero_() if buffer is None else row.copy_(buffer)
                state["momentum_buffer"] = row
        return self._momenta

    def numbers(self) -> Numbers:
        """The numbers of the coming round."""
        settings = self.settings
        alpha = 1 / self._group.num_all if self._sync.alpha is None else self._sync.alpha
        return Numbers(
            float(settings["lr"]),
            float(settings["momentum"]),
            float(settings["weight_decay"]),
            bool(settings["nesterov"]),
            alpha,
            self._sync.mu,
        )

    def begin_round(self) -> None:
        """What `optimizer.step()` would tell learning-rate schedulers, which warn when they are stepped before it."""
        self._group.optimizer.optimizer._opt_called = True  # type: ignore[attr-defined]


def fits(group: LearnerGroup, sync: Synchroniser, settings: LearningConfig, *, sum_apart: bool = False) -> bool:
    """Whether a round can step and average in one pass: one group of plain SGD without clipping, averaged by `SMA`.

    Where other devices average as well, their part of the sum comes between the learning tasks and the step.
    """
    if not group.is_alone and (not sum_apart or (isinstance(sync, SMA) and sync.levels > 1)):
        return False
    optimizer = group.optimizer.optimizer
    plain = type(optimizer) is torch.optim.SGD and len(optimizer.param_groups) == 1
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if not plain or hooked or type(sync) not in (SMA, EASGD) or settings.clip_norm is not None:
        return False
    only = optimizer.param_groups[0]
    return not only["dampening"] and not only["maximize"] and not isinstance(only["lr"], Tensor)
