"""What the learning tasks of an epoch have come to."""

import torch
from torch import Tensor

from bow.cluster import World
from bow.engines import OnNan, Outcome
from bow.engines.restarts import REMEDY
from bow.errors import DivergenceError
from bow.training.context import Learners
from bow.training.metrics import mean_of

MOST_LOST = 0.5  # the largest part of an epoch's steps that may come to nothing


class Epoch:
    """Losses since the last evaluation at the end of an epoch, and how many steps came to nothing."""

    def __init__(self, replicas: Learners) -> None:
        self._replicas = replicas
        self._losses: list[Tensor] = []
        self._tasks = 0
        self._restarts_before = 0

    def add(self, outcome: Outcome) -> None:
        self._losses.append(outcome.losses)
        self._tasks += sum(outcome.active)

    def mean_loss(self) -> float:
        return mean_loss(self._losses, self._replicas.world)

    def end(self) -> None:
        self._losses = []

    def check_divergence(self, on_nan: OnNan, has_ended: bool) -> None:
        """End a training where most of what was computed since the last epoch came to nothing."""
        restarts = self._replicas.loop.num_restarts
        own = [restarts - self._restarts_before, self._tasks]
        lost, tasks = map(int, self._replicas.world.sum_numbers(own))
        self._restarts_before, self._tasks = restarts, 0
        if lost > MOST_LOST * tasks and on_nan != "continue" and not has_ended:
            raise DivergenceError(
                f"training diverged: {lost} of the last {tasks} steps came to nothing, since loss, gradient or weights "
                f"were not finite; {REMEDY}"
            )

    def state(self) -> Tensor | None:
        """The losses of all devices at rank 0, for a checkpoint; None elsewhere."""
        losses = torch.cat(self._losses).cpu() if self._losses else torch.empty(0)
        by_device = self._replicas.world.gather(losses)
        return None if by_device is None else torch.cat(by_device)

    def load(self, losses: Tensor | None) -> None:
        self._losses = [] if losses is None else [losses.to(self._replicas.device)]
        self._restarts_before = self._replicas.loop.num_restarts


def mean_loss(by_round: list[Tensor], world: World) -> float:
    if world.is_one:
        return mean_of(by_round)
    losses = torch.cat([loss.reshape(-1) for loss in by_round]) if by_round else torch.empty(0)
    there = losses[~losses.isnan()].double()
    total, count = world.sum_numbers([float(there.sum()), float(len(there))])
    return total / count if count else float("nan")
