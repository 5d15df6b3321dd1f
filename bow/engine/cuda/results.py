"""What learning tasks leave besides gradients, on its way from the device to whoever wants to know."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bow.device import StreamDevice
from bow.engine.base import Outcome

SLOTS = 4
"""Rounds that may be under way at once: so far the host runs ahead of the device, and so late it hears of a learner
that diverged."""

LOSS, FINITE, METRICS = 0, 1, 2
"""Where what stands in a learner's row of results; metrics come last."""


class Results:
    """Rows `[loss, finite, metrics...]` of every learner, for the last rounds.

    Args:
        device: where they are made.
        learners: how many.
        metrics: the names of what the step returns besides the loss.
        dtype: of the losses.
    """

    def __init__(self, device: StreamDevice, learners: int, metrics: Sequence[str], dtype: torch.dtype) -> None:
        self._device = device
        self.metrics = list(metrics)
        self.width = METRICS + len(self.metrics)
        shape = (learners, self.width)
        self._rows = torch.zeros(SLOTS, *shape, dtype=dtype, device=device.torch_device)
        self._pinned = [device.pinned(shape, dtype) for _ in range(SLOTS)]

    def rows(self, slot: int) -> Float[Tensor, "learners values"]:
        """Where the learners of a round put their results."""
        return self._rows.data[slot]

    def empty(self, rounds: int) -> Float[Tensor, "rounds learners values"]:
        """Memory of the caller's stream for the results of some rounds."""
        return torch.empty(rounds, *self._rows.shape[1:], dtype=self._rows.dtype, device=self._rows.device)

    def collect(self, slot: int, into: Float[Tensor, "learners values"]) -> None:
        """On the current stream: give the caller what a round has left, and bring it to the host as well."""
        into.copy_(self.rows(slot))
        self._pinned[slot].copy_(self.rows(slot), non_blocking=True)

    def on_host(self, slot: int, active: list[bool]) -> Outcome:
        """What the host finds of a round that is over."""
        return self.from_values(self._device.read_host(self._pinned[slot]), active)

    def from_values(self, values: Sequence[Sequence[float]], active: list[bool]) -> Outcome:
        """A round's results from the numbers that the host has."""
        outcome = self.outcome(torch.tensor(values), active)
        outcome.healthy = [there and row[FINITE] != 0 for there, row in zip(active, values, strict=True)]
        return outcome

    def outcome(self, rows: Float[Tensor, "learners values"], active: list[bool]) -> Outcome:
        """A round's results by name."""
        metrics = {name: rows[:, METRICS + index].to(torch.float32) for index, name in enumerate(self.metrics)}
        return Outcome(rows[:, LOSS], rows[:, FINITE] != 0, active, metrics)
