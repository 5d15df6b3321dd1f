"""What the learners show of the worth of a sample: the measurements behind `objective="goodput"`."""

import torch
from torch.optim import Optimizer

from bow.errors import SettingError
from bow.sync import EASGD, SMA, Synchroniser, Timing
from bow.training.replicas import Replicas
from bow.tuner import RunningMoments, StatisticalEfficiency, repulsion

EVERY = 10
"""Rounds between two looks at weights and gradients: a look is a pass over both."""


class Signals:
    """Estimates statistical efficiency from the gradients of the learners and their distances from `z`.

    Called with a number of learners it says what a sample is worth with so many, 1 being what it is worth with one; as
    long as nothing is known, everything is worth 1. Repulsion has a formula for SGD with `SMA` and `EASGD` only; with
    others it is taken to be 0.

    Args:
        batch_size: of one learner.
        sync: what keeps the learners together.

    Raises:
        SettingError: the synchroniser averages gradients before anybody sees those of a learner.

    References:
        `bow.tuner.efficiency`, which derives the estimates.
    """

    def __init__(self, batch_size: int, sync: Synchroniser) -> None:
        if sync.timing is Timing.BEFORE_STEP:
            raise SettingError(
                f'objective="goodput" needs every learner\'s own gradient, which {sync!r} averages first; '
                'use objective="throughput", or a synchroniser such as bow.SMA()'
            )
        self._batch_size = batch_size
        self._alpha = sync.alpha if isinstance(sync, (SMA, EASGD)) else None
        self._every = sync.every
        self._pulls = isinstance(sync, (SMA, EASGD))
        self._gradients = RunningMoments()
        self._distances = RunningMoments()
        self._lr = 0.0
        self._momentum = 0.0
        self._learners = 1

    @property
    def noise_scale(self) -> float | None:
        """Of the gradients, in samples; None before anything was seen."""
        return self._gradients.noise_scale(self._batch_size)

    @torch.no_grad()
    def observe(self, replicas: Replicas) -> None:
        """Look at a round that has just ended, if it is one of those that are looked at."""
        if replicas.learners < 2 or replicas.rounds % EVERY:
            return
        replicas.catch_up()
        outcome = replicas.last
        if outcome is None or not all(outcome.healthy):
            return
        self._learners = replicas.learners
        self._lr, self._momentum = _sgd_settings(replicas.optimizer)
        _add(self._gradients, replicas.G)
        if self._pulls:
            _add(self._distances, replicas.W - replicas.z)

    def __call__(self, learners: int) -> float:
        """What a sample is worth with so many learners."""
        momentum = self._momentum if self._pulls else 0.0
        return StatisticalEfficiency(
            self.noise_scale,
            self._batch_size,
            repulsion=self._repulsion(),
            momentum=momentum,
            alpha=None if self._alpha is None else self._alpha / self._every,
        )(learners)

    def _repulsion(self) -> float:
        distances, gradients = self._distances.value, self._gradients.value
        if distances is None or gradients is None or not self._lr:
            return 0.0
        alpha = (1 / self._learners if self._alpha is None else self._alpha) / self._every
        return repulsion(distances.noise, gradients.noise, self._lr, alpha, self._momentum)


def _add(moments: RunningMoments, rows: torch.Tensor) -> None:
    mean = rows.mean(0)
    moments.add(float(rows.square().sum(1).mean()), float(mean.square().sum()), len(rows))


def _sgd_settings(optimizer: Optimizer) -> tuple[float, float]:
    """Learning rate and momentum of SGD; 0 for other optimizers, for which there is no formula."""
    group = optimizer.param_groups[0]
    if not isinstance(optimizer, torch.optim.SGD):
        return 0.0, 0.0
    return float(group["lr"]), float(group["momentum"])
