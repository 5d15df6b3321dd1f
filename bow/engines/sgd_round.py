"""A whole round in one compiled region: learning tasks, SGD with momentum, and the synchronisation task of SMA.

It is the same arithmetic as `torch.optim.SGD` and `bow.SMA` carry out one after another, in one pass over the
memory that must move; `tests/engines` holds them against each other. For a model of ten thousand parameters the
separate passes take longer than the learning tasks themselves.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bow.engines.outcome import Outcome
from bow.engines.sgd_state import Numbers, SgdState
from bow.engines.task import Batch, Metrics, TaskResult, compiled
from bow.replicas import LearnerGroup
from bow.sync import SMA


class SgdRound:
    """Rounds of one device whose optimizer is plain `torch.optim.SGD` and whose synchroniser is `SMA`."""

    def __init__(self, group: LearnerGroup, sync: SMA, together: Callable[..., TaskResult]) -> None:
        self._group = group
        self._together = together
        self._state = SgdState(group, sync)
        z = group.matrix.z
        self._hyper = torch.zeros(len(Numbers._fields), dtype=z.dtype, device=z.device)
        self._hyper_values: Numbers | None = None
        self._regions = {True: self._region(synchronise=True), False: self._region(synchronise=False)}

    def __call__(self, buffers: dict[str, Tensor], batch: Batch, due: bool) -> Outcome:
        """Run one round; `due` is whether it has a synchronisation task."""
        momenta = self._state.momenta
        self._update_hyperparameters()
        self._state.begin_round()
        matrix = self._group.matrix
        z, z_prev = matrix.z, matrix.state["z_prev"]
        loss, finite, metrics, z_next = self._regions[due](
            matrix.weights, momenta, z, z_prev, self._hyper, buffers, batch
        )
        if due:
            # Not inside the region: torch.compile writes its mutated inputs back in the order of the arguments, so
            # that z_prev would receive the new z (seen in torch 2.13).
            z_prev.copy_(z)
            z.copy_(z_next)
        return Outcome(loss, finite, [True] * len(self._group), metrics)

    def _region(self, synchronise: bool) -> Callable[..., tuple[Tensor, Tensor, Metrics, Tensor]]:
        together, nesterov = self._together, self._state.settings["nesterov"]

        def run(
            weights: Tensor,
            momenta: Tensor,
            z: Tensor,
            z_prev: Tensor,
            hyper: Tensor,
            buffers: dict[str, Tensor],
            batch: Batch,
        ) -> tuple[Tensor, Tensor, Metrics, Tensor]:
            lr, momentum, weight_decay, _, alpha, mu = hyper.unbind()
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
            return result.loss, result.finite & torch.isfinite(moved.sum(1)), result.metrics, z_next

        return compiled(run)

    def _update_hyperparameters(self) -> None:
        values = self._state.numbers()
        if values != self._hyper_values:
            self._hyper.copy_(torch.tensor(values, dtype=self._hyper.dtype))
            self._hyper_values = values
