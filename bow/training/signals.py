"""What the learners show of the worth of a sample: the measurements behind `objective="goodput"`."""

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

EVERY = 20
"""Rounds between two looks at weights and gradients: a look is a pass over both, and a round in separate passes."""


SETTLING = 4.0
"""Distances are those that learning rate, momentum and learners bring about behind so many times the rounds in which
learners forget where they were: by then, what a drop of the learning rate to a tenth has left over is 3%."""


class Signals:
    """What a sample is worth with so many learners, from their gradients and their distances from `z`."""

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
        self._shown: tuple[weakref.ref[Replicas], RemovableHandle | None] | None = None

    @property
    def noise_scale(self) -> float | None:
        """Of the gradients, in samples; None before anything was seen."""
        found = self._gradients.noise_scale(self._batch_size)
        return None if found is None else max(found, 0.0)  # of equal gradients, rounding leaves a little less

    @torch.no_grad()
    def observe(self, replicas: Replicas) -> None:
        """Look at the round that has just ended, or prepare the next one for a look, if it is time for one."""
        shown, self._shown = self._shown, None
        if shown is not None:
            prepared, hook = shown
            if hook is not None:
                hook.remove()
            if prepared() is replicas:
                self._look(replicas)
        elif replicas.learners > 1 and abs(replicas.rounds - self._looked_at) >= EVERY:
            # Where the step is part of the learning tasks, gradients are not written to `G`, unless a hook wants to
            # come between. A GPU writes them always, and would capture its graphs anew.
            hook = None if replicas.streams is not None else replicas.optimizer.register_step_post_hook(lambda *_: None)
            self._shown = weakref.ref(replicas), hook

    def _look(self, replicas: Replicas) -> None:
        replicas.loop.catch_up()
        self._looked_at = replicas.rounds
        outcome = replicas.last
        if outcome is None or len(outcome.active) != replicas.learners or not all(outcome.healthy):
            return
        self._notice_changes(replicas)
        _add(self._gradients, replicas.G)
        if self._is_pulling and self._lr and self._has_settled(replicas.rounds):
            _add(self._distances, (row - replicas.z for row in replicas.W))
            distances, gradients = self._distances.value, self._gradients.value
            if distances is not None and gradients is not None:
                alpha = self._alpha(self._learners)
                self._repulsion = repulsion(distances.noise, gradients.noise, self._lr, alpha, self._momentum)

    def _notice_changes(self, replicas: Replicas) -> None:
        """Forget distances that another learning rate, momentum or number of learners has brought about."""
        before = self._lr, self._momentum
        now = _sgd_settings(replicas.optimizer)
        if now == before and replicas.learners == self._learners:
            return
        self._lr, self._momentum = now
        self._learners, self._since = replicas.learners, replicas.rounds
        self._distances = RunningMoments()
        if now != before:  # otherwise it is still the best guess
            self._repulsion = 0.0

    def _has_settled(self, rounds: int) -> bool:
        slowest = min(self._alpha(self._learners), 1 - self._momentum)
        return (rounds - self._since) * slowest >= SETTLING

    def __call__(self, learners: int) -> float:
        momentum = self._momentum if self._is_pulling else 0.0
        return StatisticalEfficiency(
            self.noise_scale,
            self._batch_size,
            repulsion=self._repulsion,
            momentum=momentum,
            alpha=self._alpha(learners),
        )(learners)

    @property
    def _is_pulling(self) -> bool:
        return isinstance(self._sync, SMA)  # EASGD is one

    def _alpha(self, learners: int) -> float:
        """How strongly so many learners are pulled together, on the average of rounds."""
        alpha = self._sync.alpha if isinstance(self._sync, SMA) else None
        return (1 / learners if alpha is None else alpha) / self._sync.every


def _add(moments: RunningMoments, rows: Iterable[Tensor]) -> None:
    """Take in a round, row by row: learners may have left no memory for further rows of all of them."""
    total, squares, count = torch.zeros(()), torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        total = total.to(row) + row
        squares = squares.to(row.device) + row.dot(row)
        count += 1
    mean = total / count
    if squares:  # rows of zeros say nothing: engine `fused` writes no gradients
        moments.add(float(squares) / count, float(mean.dot(mean)), count)


def _sgd_settings(optimizer: Optimizer) -> tuple[float, float]:
    """Learning rate and momentum of SGD; 0 for other optimizers, for which there is no formula."""
    group = optimizer.param_groups[0]
    if not isinstance(optimizer, torch.optim.SGD) or not group["momentum"] < 1:
        return 0.0, 0.0
    return float(group["lr"]), float(group["momentum"])
