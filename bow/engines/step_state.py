"""State of engines that run the optimizer's step and SMA themselves, in one pass over the rows."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from bow.engines.outcome import LearningConfig
from bow.replicas import LearnerGroup, is_plain_adam, is_plain_sgd
from bow.sync import Members, Synchroniser, is_plain_sma

SgdStep: TypeAlias = tuple[float, float, float, bool]  # learning rate, momentum, weight decay, Nesterov

# Learning rate, both betas, epsilon, weight decay, decoupled.
AdamStep: TypeAlias = tuple[float, float, float, float, float, bool]


class Numbers(NamedTuple):
    """Hyperparameters of a round, which may change from one to the next."""

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    alpha: float
    mu: float


class StepState:
    """Optimizer state of learners with plain SGD, Adam or AdamW."""

    def __init__(self, group: LearnerGroup, sync: Synchroniser) -> None:
        self._group = group
        self._sync = sync
        self._is_adam = is_plain_adam(group.optimizer.optimizer)
        self._names = ("exp_avg", "exp_avg_sq") if self._is_adam else ("momentum_buffer",)
        # The optimizer's state of every parameter [learners, parameters], from `begin_round` on.
        self.moments = [torch.zeros_like(group.matrix.weights) for _ in self._names]
        self._rows = [list(moment) for moment in self.moments]

    def begin_round(self) -> None:
        """Bind `moments` as the optimizer's own state, with its current values."""
        # A missing buffer is zero: the first step of `torch.optim.SGD` sets it to the gradient.
        for optimizer in set(self._group.optimizer.by_learner):
            # As `step()` does; learning-rate schedulers warn if they are stepped before it.
            optimizer._opt_called = True  # type: ignore[attr-defined]
        states = self._group.optimizer.states
        for name, rows in zip(self._names, self._rows, strict=True):
            for state, row in zip(states, rows, strict=True):
                if (buffer := state.get(name)) is not row:
                    row.zero_() if buffer is None else row.copy_(buffer)
                    state[name] = row

    def bind_counts(self, counts: Sequence[Tensor]) -> None:
        for state, own in zip(self._group.optimizer.states, counts, strict=True):
            if self._is_adam and state.get("step") is not own:
                own.fill_(float(state.get("step", 0.0)))
                state["step"] = own

    @property
    def counts(self) -> list[Tensor]:
        if not self._is_adam:
            return []
        states = self._group.optimizer.states
        for state in states:
            if "step" not in state:
                state["step"] = torch.tensor(0.0)
        return [state["step"] for state in states]

    def numbers(self) -> Numbers:
        return Numbers(*_sgd_step(self._group.optimizer.optimizer), *self.averaging)

    @property
    def averaging(self) -> tuple[float, float]:
        if not is_plain_sma(self._sync):
            return 0.0, 0.0
        return 1 / self._group.num_all if self._sync.alpha is None else self._sync.alpha, self._sync.mu

    @property
    def steps(self) -> list[SgdStep] | list[AdamStep]:
        """Settings of the coming step by learner; a single one if they are the same for all."""
        rows, have_own = self._group.optimizer, isinstance(self._sync, Members)
        optimizers = rows.by_learner if have_own else [rows.optimizer]
        return [_adam_step(each) for each in optimizers] if self._is_adam else [_sgd_step(each) for each in optimizers]


def _sgd_step(optimizer: Optimizer) -> SgdStep:
    settings = optimizer.param_groups[0]  # the only one; loading a state replaces the dictionary
    lr, momentum, decay = float(settings["lr"]), float(settings["momentum"]), float(settings["weight_decay"])
    return lr, momentum, decay, bool(settings["nesterov"])


def _adam_step(optimizer: Optimizer) -> AdamStep:
    settings = optimizer.param_groups[0]
    lr, (first, second), epsilon = float(settings["lr"]), settings["betas"], float(settings["eps"])
    decay, is_decoupled = float(settings["weight_decay"]), bool(settings["decoupled_weight_decay"])
    return lr, float(first), float(second), epsilon, decay, is_decoupled


def can_step(group: LearnerGroup, settings: LearningConfig, *, adam: bool = True, clips: bool = False) -> bool:
    """Return whether an engine can step as the optimizer would: plain SGD, Adam or AdamW, without hooks."""
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks or (settings.clip_norm is not None and not clips):
        return False
    optimizers = set(group.optimizer.by_learner)
    return all(map(is_plain_sgd, optimizers)) or (adam and all(map(is_plain_adam, optimizers)))


def fits(group: LearnerGroup, sync: Synchroniser, settings: LearningConfig, *, rows: bool = False) -> bool:
    """Return whether a round on one device can step and average in one pass; `rows`: behind all learning tasks."""
    return group.is_alone and is_plain_sma(sync) and can_step(group, settings, adam=rows, clips=rows)
