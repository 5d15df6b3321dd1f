"""What learning tasks leave besides gradients, on its way from the device to whoever wants to know."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bow.devices import StreamDevice
from bow.engines.outcome import Outcome
from bow.errors import LossError

SLOTS = 8
"""Rounds that may be under way at once: so far the host runs ahead of the device, and so late it hears of a learner
that diverged."""

LOSS, FINITE, METRICS = 0, 1, 2
"""Where what stands in a learner's row of results; metrics come last."""


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
        """Where the learners of a round put their results."""
        return self._by_slot[slot]

    def rows_of_learners(self, slot: int) -> list[Tensor]:
        """The same by learner."""
        return self._by_learner[slot]

    def empty(self, rounds: int) -> Float[Tensor, "rounds learners values"]:
        """Memory of the caller's stream for the results of some rounds; a batch that is not there keeps its NaN."""
        shape = (rounds, *self._rows.shape[1:])
        return torch.full(shape, torch.nan, dtype=self._rows.dtype, device=self._rows.device)

    def check(self, metrics: Sequence[str]) -> None:
        """Refuse a step that returns other metrics than it did at first."""
        if metrics != self.metrics:
            raise LossError(
                f"the step returns metrics {', '.join(metrics) or 'none'} and returned "
                f"{', '.join(self.metrics) or 'none'} before; return the same in the same order every time"
            )

    def collect(self, slot: int, into: Float[Tensor, "learners values"]) -> None:
        """On the current stream: give the caller what a round has left, and bring it to the host as well."""
        into.copy_(self.rows(slot))
        self._pinned[slot].copy_(self.rows(slot), non_blocking=True)

    def on_host(self, slot: int) -> list[list[float]]:
        """What the host finds of a round that is over."""
        return self._device.read_host(self._pinned[slot])

    def outcomes(
        self,
        made: Float[Tensor, "rounds learners values"],
        active: Sequence[list[bool]],
        taken_by: Sequence[Sequence[int] | None],
    ) -> list[Outcome]:
        """The results of a call by name, by round."""
        losses, finite = made[..., LOSS].unbind(), (made[..., FINITE] != 0).unbind()
        metrics = {name: made[..., METRICS + i].to(torch.float32).unbind() for i, name in enumerate(self.metrics)}
        return [
            Outcome(losses[t], finite[t], there, {name: metric[t] for name, metric in metrics.items()}, taken_by[t])
            for t, there in enumerate(active)
        ]

    def outcome(self, rows: Float[Tensor, "learners values"], active: list[bool]) -> Outcome:
        """A round's results by name."""
        return self.outcomes(rows.unsqueeze(0), [active], [None])[0]
