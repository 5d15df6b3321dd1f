"""Steps and synchronous model averaging on the device: by kernels row by row, or by operators for all rows at once."""

import torch
from torch import Tensor

from bow.devices import Kernels, Stream, StreamDevice
from bow.devices.kernels import sgd_step
from bow.engines.loop import clip_factors
from bow.engines.step_state import Numbers, StepState
from bow.replicas import LearnerGroup
from bow.sync import SMA


class SgdStep:
    """Steps and averages the learners of a device whose optimizer is plain SGD and whose synchroniser is SMA.

    The next central model needs only what was there before the step, so that it is made while the learners learn:

        center:  z_prev, z = z, z + sum_j alpha (w_j - z) + mu (z - z_prev)   on the synchronisation stream
        row:     w_j = w_j - (SGD's step) - alpha (w_j - z_prev)              on learner j's stream, behind its gradient
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
        self.centered = device.event("the next central model is there")
        self._has_moved = False  # the central model, otherwise than in a round, since learners have waited for it

    def begin(self) -> None:
        """On the caller's stream, before the rounds: momenta and numbers as the optimizer has them by now."""
        self._has_moved = False
        self._state.begin_round()
        values = self._state.numbers()
        if values != self._values:
            self._device.upload(self._numbers, values)
            self._values = values

    def center(self, stream: Stream, due: bool) -> bool:
        """Move the central model by the weights before the step, if a round is due.

        Whether learners have to wait for `centered` before they step: they read what it was, or start again from it.
        """
        if due:
            matrix = self._group.matrix
            with self._device.on(stream):
                self._kernels.sma_center(matrix.weights, matrix.z, matrix.state["z_prev"], self._numbers)
        waits, self._has_moved = due or self._has_moved, False
        if waits:
            stream.record(self.centered)
        return waits

    def moved(self) -> None:
        """The central model has moved on the synchronisation stream, for learners to wait for."""
        self._has_moved = True

    def row(self, learner: int, results: Tensor, kept: Tensor, synchronise: bool) -> None:
        """Step one learner and keep its results; where they are not finite, it starts again from the central model."""
        matrix = self._group.matrix
        rows = *self._rows[learner], matrix.z, matrix.state["z_prev"]
        self._kernels.sgd_row(*rows, results, kept, self._numbers, synchronise)

    def correct(self, learner: int) -> None:
        """Correct a learner that has no batch and takes no step."""
        weights, _, _ = self._rows[learner]
        before = self._group.matrix.state["z_prev"]
        weights.sub_((weights - before) * self._numbers[Numbers._fields.index("alpha")])

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


class RowsStep:
    """Steps and averages all learners at once behind their learning tasks, by operators that a round's graph holds.

    Plain SGD, Adam and AdamW, gradients clipped where that is asked for, kept together by SMA. Nothing is looked at on
    the host: numbers that may change from round to round lie on the device, Adam's counts of steps as well. As in
    `SgdStep`, a learner that is not finite starts again from the central model with an optimizer that has seen nothing.

    References:
        Kingma and Ba: Adam: A method for stochastic optimization, 2015, Algorithm 1.
    """

    def __init__(self, device: StreamDevice, group: LearnerGroup, sync: SMA, clip_norm: float | None) -> None:
        self._device = device
        self._group = group
        self._clip_norm = clip_norm
        self._state = StepState(group, sync)
        self._moments = self._state.moments
        matrix = group.matrix
        self._dtype = torch.promote_types(matrix.z.dtype, torch.float32)  # of the arithmetic: bfloat16 has no 0.999
        self._counts = torch.zeros(len(group), dtype=self._dtype, device=matrix.z.device)
        self._count_of = list(self._counts.unbind())
        self._told: tuple[float, ...] = ()
        self._numbers = torch.zeros(len(self._values()), dtype=torch.float64, device=matrix.z.device)

    def begin(self) -> None:
        """On the caller's stream, before the rounds: moments, counts and numbers as the optimizer has them by now."""
        self._state.bind_counts(self._count_of)
        self._state.begin_round()
        values = self._values()
        if values != self._told:
            self._device.upload(self._numbers, values)
            self._told = values

    def whole(self, finite: Tensor, synchronise: bool) -> None:
        """Step and average all learners; of each, `finite` is 1, 0 where it diverged, and NaN where it has no batch."""
        matrix = self._group.matrix
        before = matrix.state["z_prev"]
        w, z, z_prev, g = (row.to(self._dtype) for row in (matrix.weights, matrix.z, before, matrix.gradients))
        moments = [moment.to(self._dtype) for moment in self._moments]
        if self._clip_norm is not None:
            g = g * clip_factors(g, self._clip_norm)  # the live check looks at the gradient as it was
        *hyper, alpha, mu = self._numbers.to(self._dtype).unbind()
        steps, starts_again = (finite == 1).unsqueeze(1), (finite == 0).unsqueeze(1)
        counts = self._counts.unsqueeze(1)
        if len(moments) == 1:
            moved, velocity = sgd_step(w, moments[0], g, steps, (*hyper, alpha, mu))
            made = [velocity]
        else:
            counts = torch.where(starts_again, 0, counts + steps)
            moved, made = self._adam(w, g, moments, counts, hyper)
        center, kept = z, w
        if synchronise:
            corrections = torch.sub(w, z).mul_(alpha)
            moved, kept = moved - corrections, w - corrections
            center = torch.addcmul(z + corrections.sum(0), z - z_prev, mu)
        for moment, new in zip(self._moments, made, strict=True):
            moment.copy_(torch.where(steps, new, torch.where(starts_again, 0, moment)))
        self._counts.copy_(counts.squeeze(1))
        matrix.weights.copy_(torch.where(steps, moved, torch.where(starts_again, center, kept)))
        if synchronise:
            before.copy_(matrix.z)
            matrix.z.copy_(center)

    def _adam(
        self, w: Tensor, g: Tensor, moments: list[Tensor], counts: Tensor, hyper: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        lr, first, second, epsilon, decay = hyper
        *_, is_decoupled = self._state.steps[0]
        if is_decoupled:
            w = w - w * (lr * decay)
        else:
            g = torch.addcmul(g, w, decay)
        mean = torch.lerp(moments[0], g, 1 - first)
        square = torch.addcmul(moments[1] * second, g * g, 1 - second)
        root = square.sqrt() / (1 - second**counts).sqrt() + epsilon
        return torch.addcdiv(w, mean * (-lr / (1 - first**counts)), root), [mean, square]

    def _values(self) -> tuple[float, ...]:
        step = self._state.steps[0]
        return (*map(float, step if len(self._moments) == 1 else step[:5]), *self._state.averaging)
