"""Restart diverged learners from the central model; detect trainings that cannot recover."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bow.engines.outcome import LearningConfig, Outcome
from bow.errors import DivergenceError, warn_user
from bow.replicas import LearnerGroup
from bow.sync import DropRule, Synchroniser, Timing

HOPELESS_ROUNDS = 10  # consecutive rounds in which every learner diverged, after which training ends with an error
REMEDY = 'lower the learning rate, look for NaN in the data, or continue with on_nan="continue"'


class Restarts:
    """Restart learners: diverged ones, and all of them when the learning rate drops."""

    def __init__(
        self,
        group: LearnerGroup,
        sync: Synchroniser,
        settings: LearningConfig,
        note: Callable[..., None],  # `RoundLog.record_event`
        where: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.drop = DropRule()
        self.num_restarts = 0
        self._group = group
        self._sync = sync
        self._on_nan = settings.on_nan
        self._note = note
        self._where = where
        self._hopeless_rounds = 0

    @property
    def replaces_weights(self) -> bool:
        """Whether a restart replaces weights; where gradients are averaged, all weights are equal anyway."""
        return self._sync.timing is not Timing.BEFORE_STEP

    @property
    def is_hopeless(self) -> bool:
        return self._on_nan != "continue" and self._hopeless_rounds >= HOPELESS_ROUNDS

    def observe_learning_rate(self) -> None:
        self.drop.observe(float(self._group.optimizer.optimizer.param_groups[0]["lr"]))

    def after_drop(self) -> bool:
        """After a synchronisation task, restart all learners if the learning rate has dropped; return whether."""
        before = self.drop.maximum
        if not (self._sync.restarts_on_drop and self.drop.take()):
            return False
        self._sync.restart_all(self._group.matrix)
        fell = f"the learning rate fell from {before:.4g} to {self.drop.current:.4g}"
        self._note("restart", f"{fell}: all learners restart from the central model")
        return True

    def restart(
        self, diverged: Sequence[bool], weights: bool = True, gather: bool = True, written: bool = False
    ) -> None:
        if not self._sync.restarts_diverged:
            return
        center = self._sync.center(self._group.matrix)
        weights = weights and self.replaces_weights
        self._group.restart(diverged, center, weights=weights, gather=gather, written=written)

    def after_step(self, outcome: Outcome, due: bool) -> None:
        """Restart learners whose step led to non-finite weights, before others average with them."""
        finite = torch.isfinite(self._group.matrix.weights.sum(1))
        if not bool(finite.all()):
            outcome.mark_diverged(finite)
            self.restart(outcome.diverged)
            for learner, diverged in enumerate(outcome.diverged):
                if diverged and due:
                    self._sync.restarted(self._group.matrix, learner)

    def count_healthy(self) -> None:
        self._hopeless_rounds = 0

    def count(self, outcome: Outcome, round_index: int) -> None:
        """Report diverged learners; raise if restarting them from `z` cannot help."""
        if not outcome.any_diverged:
            if any(outcome.active):  # not a round that all sit out
                self.count_healthy()
            return
        if not self._sync.restarts_diverged:
            return
        which = outcome.diverged.index(True)
        loss = float(outcome.losses[which])
        quantity = "gradient or weights were not finite" if math.isfinite(loss) else f"loss was {loss:g}"
        learner = which if outcome.taken_by is None else outcome.taken_by[which]
        cause = f"learner {self._group.first + learner}'s {quantity} in round {round_index}"
        if self._on_nan == "error":
            raise DivergenceError(f'{cause}; lower the learning rate, or use on_nan="restart"')
        self._hopeless_rounds = 0 if any(outcome.healthy) else self._hopeless_rounds + 1
        if self.is_hopeless and self._group.is_alone:  # else other devices may have healthy ones
            raise DivergenceError(f"training diverged: {cause}, and all others diverged too; {REMEDY}")
        with self._where():
            is_finite = bool(torch.isfinite(self._group.matrix.z).all())
        if not is_finite:
            why = f"{cause}, and the central model is not finite"
            raise DivergenceError(f"training diverged: {why}; lower the learning rate")
        what = "restarts from the central model" if self.replaces_weights else "is excluded from the mean"
        message = f"{cause}: it {what}"
        if not self.num_restarts:
            warn_user(f"{message} (further restarts are only counted)")
        self.num_restarts += sum(outcome.diverged)
        self._note("learner restarted", message, round_index)
