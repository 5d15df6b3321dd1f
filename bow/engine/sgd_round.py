"""A whole round in one compiled region: learning tasks, SGD with momentum, and the synchronisation task of SMA.

It is the same arithmetic as `torch.optim.SGD` and `bow.SMA` carry out one after another, in one pass over the
memory that must move; `tests/engine` holds them against each other. For a model of ten thousand parameters the
separate passes take longer than the learning tasks themselves.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bow.engine.base import Outcome, TaskSettings
from bow.engine.task import Batch, Metrics, TaskResult, compiled
from bow.replica import LearnerGroup
from bow.sync import EASGD, SMA, Synchroniser

HYPERPARAMETERS = ("lr", "momentum", "weight_decay")


class SgdRound:
    """Rounds of one device whose optimizer is plain `torch.optim.SGD` and whose synchroniser is `SMA`.

    Args:
        group: the learners.
        sync: an `SMA`.
        together: the learning task of all learners at once, `(rows, buffers, batch) -> TaskResult`.
    """

    def __init__(self, group: LearnerGroup, sync: SMA, together: Callable[..., TaskResult]) -> None:
        self._group = group
        self._sync = sync
        self._together = together
        z = group.matrix.z
        self._hyper = torch.zeros(len(HYPERPARAMETERS) + 2, dtype=z.dtype, device=z.device)
        self._hyper_values: tuple[float, ...] = ()
        self._momenta = torch.zeros_like(group.matrix.weights)
        self._rows = list(self._momenta)
        self._regions = {True: self._region(synchronise=True), False: self._region(synchronise=False)}

    def __call__(self, buffers: dict[str, Tensor], batch: Batch, due: bool) -> Outcome:
        """Run one round; `due` is whether it has a synchronisation task."""
        self._bind_momenta()
        self._update_hyperparameters()
        # What optimizer.step() would tell learning-rate schedulers, which warn when they are stepped before it.
        self._group.optimizer.optimizer._opt_called = True  # type: ignore[attr-defined]
        matrix = self._group.matrix
        z, z_prev = matrix.z, matrix.state["z_prev"]
        loss, finite, metrics, z_next = self._regions[due](
            matrix.weights, self._momenta, z, z_prev, self._hyper, buffers, batch
        )
        if due:
            # Not inside the region: torch.compile writes its mutated inputs back in the order of the arguments, so
            # that z_prev would receive the new z (seen in torch 2.13).
            z_prev.copy_(z)
            z.copy_(z_next)
        return Outcome(loss, finite, [True] * len(self._group), metrics)

    @property
    def _settings(self) -> dict[str, Any]:
        """The optimizer's only group; loading a state puts another dictionary in its place."""
        settings: dict[str, Any] = self._group.optimizer.optimizer.param_groups[0]
        return settings

    def _region(self, synchronise: bool) -> Callable[..., tuple[Tensor, Tensor, Metrics, Tensor]]:
        together, nesterov = self._together, self._settings["nesterov"]

        def run(
            weights: Tensor,
            momenta: Tensor,
            z: Tensor,
            z_prev: Tensor,
            hyper: Tensor,
            buffers: dict[str, Tensor],
            batch: Batch,
        ) -> tuple[Tensor, Tensor, Metrics, Tensor]:
            lr, momentum, weight_decay, alpha, mu = hyper.unbind()
            result = together(weights, buffers, batch)
            finite = result.finite.unsqueeze(1)
            gradient = result.gradient + weight_decay * weights
            velocity = momentum * momenta + gradient
            step = lr * (gradient + momentum * velocity if nesterov else velocity)
            moved = weights - torch.where(finite, step, 0)
            z_next = z
            if synchronise:
                corrections = alpha * (weights - z)
                moved = moved - corrections
                z_next = z + corrections.sum(0) + mu * (z - z_prev)
            momenta.copy_(torch.where(finite, velocity, momenta))
            weights.copy_(moved)
            for name, buffer in result.buffers.items():
                buffers[name].copy_(buffer)
            return result.loss, result.finite, result.metrics, z_next

        return compiled(run)

    def _update_hyperparameters(self) -> None:
        learners = len(self._group)
        alpha = 1 / learners if self._sync.alpha is None else self._sync.alpha
        settings = self._settings
        values = (*(float(settings[name]) for name in HYPERPARAMETERS), alpha, self._sync.mu)
        if values != self._hyper_values:
            self._hyper.copy_(torch.tensor(values, dtype=self._hyper.dtype))
            self._hyper_values = values

    def _bind_momenta(self) -> None:
        """Make the optimizer's momentum buffers rows of one matrix, so that it and the region see the same state.

        A buffer that is not there yet is zero: the first step of `torch.optim.SGD` sets it to the gradient.
        """
        optimizer = self._group.optimizer.optimizer
        for row, parameter in zip(self._rows, self._settings["params"], strict=True):
            state: dict[str, Any] = optimizer.state[parameter]
            buffer = state.get("momentum_buffer")
            if buffer is not row:
                row.zero_() if buffer is None else row.copy_(buffer)
                state["momentum_buffer"] = row


def fits(group: LearnerGroup, sync: Synchroniser, settings: TaskSettings) -> bool:
    """Whether a training can run in one region: one group of plain SGD without clipping, averaged by `SMA`."""
    optimizer = group.optimizer.optimizer
    plain = type(optimizer) is torch.optim.SGD and len(optimizer.param_groups) == 1
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if not plain or hooked or type(sync) not in (SMA, EASGD) or settings.clip_norm is not None:
        return False
    only = optimizer.param_groups[0]
    return not only["dampening"] and not only["maximize"] and not isinstance(only["lr"], Tensor)
