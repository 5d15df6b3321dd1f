"""What the engines need that carry out SGD with momentum and SMA themselves, in one pass over the rows."""

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from bow.engines.outcome import LearningConfig
from bow.replicas import LearnerGroup, is_plain_sgd
from bow.sync import SMA, Members, Synchroniser, is_plain_sma

Step: TypeAlias = tuple[float, float, float, bool]
"""Learning rate, momentum, weight decay, and whether momentum is Nesterov's."""


class Numbers(NamedTuple):
    """The numbers of a round, which may change from one to the next."""

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    alpha: float
    mu: float


class StepState:
    """The learners of a device whose optimizer is plain `torch.optim.SGD`, kept together by `SMA` or by nothing."""

    def __init__(self, group: LearnerGroup, sync: SMA | Members) -> None:
        self._group = group
        self._sync = sync
        self._momenta = torch.zeros_like(group.matrix.weights)
        self._rows = list(self._momenta)

    @property
    def momenta(self) -> Tensor:
        """Momentum buffers `[learners, parameters]`; the optimizer's own state from now on.

        A buffer that is not there yet is zero: the first step of `torch.optim.SGD` sets it to the gradient.
        """
        rows = self._group.optimizer
        for learner, (row, optimizer) in enumerate(zip(self._rows, rows.by_learner, strict=True)):
            state: dict[str, Any] = optimizer.state[rows.tensors_of(learner)[0]]
            buffer = state.get("momentum_buffer")
            if buffer is not row:
                row.zero_() if buffer is None else row.copy_(buffer)
                state["momentum_buffer"] = row
        return self._momenta

    def numbers(self) -> Numbers:
        """The numbers of the coming round."""
        return Numbers(*_step_of(self._group.optimizer.optimizer), *self.averaging)

    @property
    def averaging(self) -> tuple[float, float]:
        """`alpha` and `mu`; members do not average."""
        if isinstance(self._sync, Members):
            return 0.0, 0.0
        return 1 / self._group.num_all if self._sync.alpha is None else self._sync.alpha, self._sync.mu

    @property
    def steps(self) -> list[Step]:
        """The settings of the coming step, by learner; one where it is the same for all."""
        if isinstance(self._sync, Members):
            return [_step_of(optimizer) for optimizer in self._group.optimizer.by_learner]
        return [_step_of(self._group.optimizer.optimizer)]

    def begin_round(self) -> None:
        """What `optimizer.step()` would tell learning-rate schedulers, which warn when they are stepped before it."""
        for optimizer in set(self._group.optimizer.by_learner):
            optimizer._opt_called = True  # type: ignore[attr-defined]


def _step_of(optimizer: torch.optim.Optimizer) -> Step:
    settings = optimizer.param_groups[0]  # the only one; loading a state puts another dictionary in its place
    lr, momentum, decay = float(settings["lr"]), float(settings["momentum"]), float(settings["weight_decay"])
    return lr, momentum, decay, bool(settings["nesterov"])


def fits(group: LearnerGroup, sync: Synchroniser, settings: LearningConfig, *, native: bool = False) -> bool:
    """Whether a round can step and average in one pass: one group of plain SGD without clipping, averaged by `SMA`.

    The native runtime also steps members, which do not average, and steps behind the sum over other devices.
    """
    if not group.is_alone and (not native or (isinstance(sync, SMA) and sync.levels > 1)):
        return False
    if not (is_plain_sma(sync) or (native and type(sync) is Members)) or settings.clip_norm is not None:
        return False
    return all(is_plain_sgd(optimizer) for optimizer in set(group.optimizer.by_learner))
