"""Results of learning tasks besides gradients, and their copies to the host."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bow.devices import StreamDevice
from bow.engines.outcome import Outcome
from bow.errors import LossError

SLOTS = 8  # rounds in flight: how far the host runs ahead of the device, and how late it sees that a learner diverged
LOSS, FINITE, METRICS = 0, 1, 2  # columns of a learner's row of results; metrics come last


class Results:
    """Rows `[loss, finite, metrics...]` of every learner, for the last rounds."""

    def __init__(self, device: StreamDevice, learners: int, metrics: Sequence[str], dtype: torch.dtype) -> None:
        self._device = device
        self.metrics = list(metrics)
        self.width = METRICS + len(self.metrics)
        shape = (learners, self.width)
        self._rows = torch.zeros(SLOTS, *shape, dtype=dtype, device=device.torch_device)
        self._by_slot = [self._rows.data[slot] for slot in range(SLOTS)]
        self._by_learner = [[rows.data[learner] for learner in range(learners)] for rows in self._by_slot]
        self._pinned = [device.pinned(shape, dtype) for _ in range(SLOTS)]

    def rows(self, slot: int) -> Float[Tensor, "learners values"]:
        return self._by_slot[slot]

    def rows_of_learners(self, slot: int) -> list[Tensor]:
        return self._by_learner[slot]

    def empty(self, rounds: int) -> Float[Tensor, "rounds learners values"]:
        """Allocate the caller's results of several rounds, filled with NaN for missing batches."""
        shape = (rounds, *self._rows.shape[1:])
        return torch.full(shape, torch.nan, dtype=self._rows.dtype, device=self._rows.device)

    def check(self, metrics: Sequence[str]) -> None:
        """Raise if a step returns other metrics than it did at first."""
        if metrics != self.metrics:
            raise LossError(
                f"the step returns metrics {', '.join(metrics) or 'none'} and returned "
                f"{', '.join(self.metrics) or 'none'} before; return the same in the same order every time"
            )

    def collect(self, slot: int, into: Float[Tensor, "learners values"]) -> None:
        """Copy a round's results to the caller's memory and to the host, on the current stream."""
        into.copy_(self.rows(slot))
        self._pinned[slot].copy_(self.rows(slot), non_blocking=True)

    def on_host(self, slot: int) -> list[list[float]]:
        return self._device.read_host(self._pinned[slot])

    def outcomes(
        self,
        made: Float[Tensor, "rounds learners values"],
        active: Sequence[list[bool]],
        taken_by: Sequence[Sequence[int] | None],
    ) -> list[Outcome]:
        losses, finite = made[..., LOSS].unbind(), (made[..., FINITE] != 0).unbind()
        metrics = {name: made[..., METRICS + i].to(torch.float32).unbind() for i, name in enumerate(self.metrics)}
        return [
            Outcome(losses[t], finite[t], there, {name: metric[t] for name, metric in metrics.items()}, taken_by[t])
            for t, there in enumerate(active)
        ]

    def outcome(self, rows: Float[Tensor, "learners values"], active: list[bool]) -> Outcome:
        return self.outcomes(rows.unsqueeze(0), [active], [None])[0]
