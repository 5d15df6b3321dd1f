"""SGD and synchronous model averaging by kernels, row by row behind the learning tasks."""

import torch
from torch import Tensor

from bow.devices import Kernels, StreamDevice
from bow.engines.step_state import Numbers, StepState
from bow.replicas import LearnerGroup
from bow.sync import SMA


class SgdStep:
    """Steps and averages the learners of a device whose optimizer is plain SGD and whose synchroniser is SMA.

    The next central model needs only what was there before the step, so that it is made while the learners learn:

        center:  z_next = z + sum_j alpha (w_j - z) + mu (z - z_prev)      on the synchronisation stream
        row:     w_j = w_j - (SGD's step) - alpha (w_j - z)                on learner j's stream, behind its gradient
        commit:  z_prev = z, z = z_next                                    behind all rows
    """

    def __init__(self, device: StreamDevice, group: LearnerGroup, sync: SMA, kernels: Kernels) -> None:
        self._device = device
        self._group = group
        self._kernels = kernels
        self._state = StepState(group, sync)
        matrix = group.matrix
        self._momenta: Tensor = self._state.moments[0]
        learners = range(len(group))
        self._rows = [(matrix.weights_of(j), self._momenta[j], matrix.gradient_of(j)) for j in learners]
        self._next = torch.empty_like(matrix.z)
        self._numbers = torch.zeros(len(Numbers._fields), dtype=torch.float64, device=matrix.z.device)
        self._values: Numbers | None = None
        self.centered = device.event("the next central model is there")

    def begin(self) -> None:
        """On the caller's stream, before the rounds: momenta and numbers as the optimizer has them by now."""
        assert self._state.moments[0] is self._momenta
        self._state.begin_round()
        values = self._state.numbers()
        if values != self._values:
            self._device.upload(self._numbers, values)
            self._values = values

    def center(self) -> None:
        """Make the next central model from the weights before the step."""
        matrix = self._group.matrix
        self._kernels.sma_center(matrix.weights, matrix.z, matrix.state["z_prev"], self._next, self._numbers)

    def row(self, learner: int, finite: Tensor, synchronise: bool) -> None:
        """Step one learner; where it is not finite, it starts again from the central model."""
        rows = self._rows[learner]
        self._kernels.sgd_row(*rows, self._group.matrix.z, self._next, finite, self._numbers, synchronise)

    def correct(self, learner: int) -> None:
        """Correct a learner that has no batch and takes no step."""
        weights, _, _ = self._rows[learner]
        weights.sub_((weights - self._group.matrix.z) * self._numbers[Numbers._fields.index("alpha")])

    def commit(self) -> None:
        """Make the next central model the central model."""
        matrix = self._group.matrix
        matrix.state["z_prev"].copy_(matrix.z)
        matrix.z.copy_(self._next)

    def whole(self, finite: Tensor, synchronise: bool) -> None:
        """Everything for all learners in one pass over the rows, behind all of them."""
        matrix = self._group.matrix
        self._kernels.sgd_round(
            matrix.weights,
            self._momenta,
            matrix.gradients,
            matrix.z,
            matrix.state["z_prev"],
            finite,
            self._numbers,
            synchronise,
        )
