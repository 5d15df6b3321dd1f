"""Steps and synchronous model averaging on the device: by kernels row by row, or for all rows at once."""

import torch
from torch import Tensor

from bow.devices import Kernels, Stream, StreamDevice
from bow.engines.loop import clip_factors
from bow.engines.step_state import Numbers, StepState
from bow.replicas import LearnerGroup
from bow.sync import SMA


class SgdStep:
    """Step and average learners whose optimizer is plain SGD and whose synchroniser is SMA.

    The next central model depends only on values from before the step, so it is computed while the learners learn:

        center:  z_prev, z = z, z + sum_j alpha (w_j - z) + mu (z - z_prev)   on the synchronisation stream
        row:     w_j = w_j - (SGD's step) - alpha (w_j - z_prev)              on learner j's stream, after its gradient
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
        self._numbers = torch.zeros(len(Numbers._fields), dtype=torch.float64, device=matrix.z.device)
        self._values: Numbers | None = None
        self.centered = device.event("the next central model is ready")
        self._has_moved = False  # whether z moved outside of `center` since learners last waited

    def begin(self) -> None:
        """On the caller's stream, before the rounds: update momenta and numbers from the optimizer."""
        self._has_moved = False
        self._state.begin_round()
        values = self._state.numbers()
        if values != self._values:
            self._device.upload(self._numbers, values)
            self._values = values

    def center(self, stream: Stream, due: bool) -> bool:
        """Move z by the weights before the step, if `due`; return whether learners have to wait for `centered`."""
        if due:
            matrix = self._group.matrix
            with self._device.on(stream):
                self._kernels.sma_center(matrix.weights, matrix.z, matrix.state["z_prev"], self._numbers)
        waits, self._has_moved = due or self._has_moved, False
        if waits:
            stream.record(self.centered)
        return waits

    def moved(self) -> None:
        """Called after the central model moved on the synchronisation stream: learners wait for it."""
        self._has_moved = True

    def row(self, learner: int, results: Tensor, kept: Tensor, synchronise: bool) -> None:
        """Step one learner and keep its results; if they are not finite, it restarts from the central model."""
        matrix = self._group.matrix
        rows = *self._rows[learner], matrix.z, matrix.state["z_prev"]
        self._kernels.sgd_row(*rows, results, kept, self._numbers, synchronise)

    def correct(self, learner: int) -> None:
        weights, _, _ = self._rows[learner]
        before = self._group.matrix.state["z_prev"]
        weights.sub_((weights - before) * self._numbers[Numbers._fields.index("alpha")])

    def whole(self, finite: Tensor, synchronise: bool) -> None:
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


class RowsStep:
    """Step and average all learners after their learning tasks, by a kernel that a round's graph holds."""

    # The host reads nothing: numbers that may change from round to round are stored on the device, as are Adam's counts
    # of steps. As in `SgdStep`, a learner that is not finite restarts from the central model, with fresh optimizer
    # state.

    def __init__(
        self, device: StreamDevice, group: LearnerGroup, sync: SMA, kernels: Kernels, clip_norm: float | None
    ) -> None:
        self._device = device
        self._group = group
        self._kernels = kernels
        self._clip_norm = clip_norm
        self._state = StepState(group, sync)
        z = group.matrix.z
        self._counts = torch.zeros(len(group), dtype=torch.promote_types(z.dtype, torch.float32), device=z.device)
        self._count_of = list(self._counts.unbind())
        self._uploaded: tuple[float, ...] = ()
        self._numbers = torch.zeros(len(self._values()), dtype=torch.float64, device=z.device)

    def begin(self) -> None:
        """On the caller's stream, before the rounds: update moments, counts and numbers from the optimizer."""
        self._state.bind_counts(self._count_of)
        self._state.begin_round()
        values = self._values()
        if values != self._uploaded:
            self._device.upload(self._numbers, values)
            self._uploaded = values

    def whole(self, finite: Tensor, synchronise: bool) -> None:
        """Step and average all learners; `finite` is 1, 0 for one that diverged, and NaN for one without a batch."""
        matrix, moments = self._group.matrix, self._state.moments
        gradients = matrix.gradients
        if self._clip_norm is not None:  # in other memory: the live check reads the unclipped gradient
            wide = gradients.to(self._counts.dtype)
            gradients = (wide * clip_factors(wide, self._clip_norm)).to(gradients.dtype)
        centers = matrix.z, matrix.state["z_prev"]
        if len(moments) == 1:
            rows = matrix.weights, moments[0], gradients
            self._kernels.sgd_round(*rows, *centers, finite, self._numbers, synchronise)
        else:
            own = matrix.weights, moments[0], moments[1], gradients
            self._kernels.adam_round(*own, *centers, finite, self._counts, self._numbers, synchronise)

    def _values(self) -> tuple[float, ...]:
        return (*map(float, self._state.steps[0]), *self._state.averaging)
