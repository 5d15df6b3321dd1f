"""Measurements for `objective="goodput"`: gradient noise, and distances of the learners from `z`."""

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from bow.errors import SettingError
from bow.sync import SMA, Synchroniser, Timing
from bow.training.replicas import Replicas
from bow.tuner import RunningMoments, StatisticalEfficiency, repulsion

# Rounds between measurements, each of which reads all weights and gradients and needs a round in separate passes.
EVERY = 20

# Distances are measured after this many time constants of averaging and momentum: after a drop of the learning rate
# to a tenth, their squares are then 3% above the new stationary value (99 exp(-8)).
SETTLING = 4.0


class Signals:
    """Statistical efficiency by number of learners, from their gradients and their distances from `z`."""

    def __init__(self, batch_size: int, sync: Synchroniser) -> None:
        if sync.timing is Timing.BEFORE_STEP:
            raise SettingError(
                f'objective="goodput" needs every learner\'s own gradient, which {sync!r} averages first; '
                'use objective="throughput", or a synchroniser such as bow.SMA()'
            )
        self._batch_size = batch_size
        self._sync = sync
        self._gradients = RunningMoments()
        self._distances = RunningMoments()
        self._lr = 0.0
        self._momentum = 0.0
        self._learners = 1
        self._since = 0
        self._repulsion = 0.0
        self._looked_at = 0
        self._prepared: tuple[weakref.ref[Replicas], RemovableHandle | None] | None = None

    @property
    def noise_scale(self) -> float | None:
        """Gradient noise scale, in samples; None before the first measurement."""
        found = self._gradients.noise_scale(self._batch_size)
        return None if found is None else max(found, 0.0)  # rounding makes it slightly negative for equal gradients

    @torch.no_grad()
    def observe(self, replicas: Replicas) -> None:
        """Measure the round that has just ended, or prepare the next one for a measurement if one is due."""
        shown, self._prepared = self._prepared, None
        if shown is not None:
            prepared, hook = shown
            if hook is not None:
                hook.remove()
            if prepared() is replicas:
                self._measure(replicas)
        elif replicas.learners > 1 and abs(replicas.rounds - self._looked_at) >= EVERY:
            # Engines whose learning tasks include the step write gradients to `G` only if the optimizer has a hook.
            # GPUs always write them, and a hook would make them recapture their graphs.
            hook = None if replicas.streams is not None else replicas.optimizer.register_step_post_hook(lambda *_: None)
            self._prepared = weakref.ref(replicas), hook

    def _measure(self, replicas: Replicas) -> None:
        replicas.loop.catch_up()
        self._looked_at = replicas.rounds
        outcome = replicas.last
        if outcome is None or len(outcome.active) != replicas.learners or not all(outcome.healthy):
            return
        self._notice_changes(replicas)
        _add(self._gradients, replicas.G)
        slowest = min(self._alpha(self._learners), 1 - self._momentum)
        has_settled = (replicas.rounds - self._since) * slowest >= SETTLING
        if isinstance(self._sync, SMA) and self._lr and has_settled:
            _add(self._distances, (row - replicas.z for row in replicas.W))
            distances, gradients = self._distances.value, self._gradients.value
            if distances is not None and gradients is not None:
                alpha = self._alpha(self._learners)
                self._repulsion = repulsion(distances.noise, gradients.noise, self._lr, alpha, self._momentum)

    def _notice_changes(self, replicas: Replicas) -> None:
        """Discard distances measured with another learning rate, momentum or number of learners."""
        before = self._lr, self._momentum
        now = _sgd_settings(replicas.optimizer)
        if now == before and replicas.learners == self._learners:
            return
        self._lr, self._momentum = now
        self._learners, self._since = replicas.learners, replicas.rounds
        self._distances = RunningMoments()
        if now != before:  # otherwise it is still the best guess
            self._repulsion = 0.0

    def __call__(self, learners: int) -> float:
        momentum = self._momentum if isinstance(self._sync, SMA) else 0.0
        averaging = {"repulsion": self._repulsion, "momentum": momentum, "alpha": self._alpha(learners)}
        return StatisticalEfficiency(self.noise_scale, self._batch_size, **averaging)(learners)

    def _alpha(self, learners: int) -> float:
        alpha = self._sync.alpha if isinstance(self._sync, SMA) else None
        return (1 / learners if alpha is None else alpha) / self._sync.every


def _add(moments: RunningMoments, rows: Iterable[Tensor]) -> None:
    """Add a round, row by row: there may be no memory for another row per learner."""
    total, squares, count = torch.zeros(()), torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        total = total.to(row) + row
        squares = squares.to(row.device) + row.dot(row)
        count += 1
    mean = total / count
    if squares:  # ignore rows of zeros: engine `fused` writes no gradients
        moments.add(float(squares) / count, float(mean.dot(mean)), count)


def _sgd_settings(optimizer: Optimizer) -> tuple[float, float]:
    """Return learning rate and momentum of SGD; 0 for other optimizers, for which there is no formula."""
    group = optimizer.param_groups[0]
    if not isinstance(optimizer, torch.optim.SGD) or not group["momentum"] < 1:
        return 0.0, 0.0
    return float(group["lr"]), float(group["momentum"])
