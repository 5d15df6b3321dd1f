"""Kernels over the replica matrix: averaging, SGD with momentum, Adam, gathering a batch."""

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from bow.errors import BowError, reason

Matrix = Float[Tensor, "learners parameters"]
Row = Float[Tensor, " parameters"]
Numbers = Float64[Tensor, "6"]
AdamNumbers = Float64[Tensor, "8"]
TaskNumbers = Float[Tensor, " values"]  # in the kernel's compute dtype: that of the rows, or float32
LearnerNumbers = Float[Tensor, " learners"]  # likewise
Samples = Shaped[Tensor, "samples *sample"]
Indices = Int64[Tensor, " batch"]
Batch = Shaped[Tensor, "batch *sample"]


class Kernels:
    """Operations over the rows of the replica matrix, implemented with PyTorch operators for any device and dtype.

    The CUDA kernels override them, and are tested against them. `weights`, `momenta`, `gradients` and `corrections` are
    rows of learners; the elements of a row are contiguous, the rows may have any stride. `z`, `z_prev` and `total` are
    single rows. No operation waits for the device or reads from it, so that all can be captured in a CUDA graph. For
    that, `numbers` is a tensor too: `lr, momentum, weight_decay, nesterov (0 or 1), alpha, mu`; a replayed graph uses
    its current values. `finite` is 1 for a learner whose loss and gradient are finite, 0 if they are not, and NaN if it
    has no batch.

    Attributes:
        name: name of the implementation.
        reason: why faster kernels are not used, and the remedy; None: there are no faster ones.

    Example:
        >>> weights, z, total = torch.tensor([[1.0], [3.0]]), torch.zeros(1), torch.empty(1)
        >>> Kernels().sma_contribute(weights, z, torch.empty(2, 1), total, alpha=0.5)
        >>> total
        tensor([2.])
    """

    name = "torch"

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason

    def launch_once(self) -> None:
        """Launch every kernel once, before a capture, which forbids what a first launch does; PyTorch needs nothing."""

    def sma_contribute(self, weights: Matrix, z: Row, corrections: Matrix, total: Row, alpha: float) -> None:
        """`C = alpha (W - z)`, `total = sum_j C_j`."""
        with torch.no_grad(), _written(corrections, total) as (c, added):
            torch.sub(_read(weights), _read(z), out=c)
            c.mul_(alpha)
            torch.sum(c, 0, out=added)

    def sma_apply(self, weights: Matrix, corrections: Matrix, z: Row, z_prev: Row, total: Row, mu: float) -> None:
        """`W -= C`, `z' = z + total + mu (z - z_prev)`, `z_prev = z`, `z = z'`.

        What `total` holds afterwards is not defined.
        """
        with torch.no_grad(), _written(weights, z, z_prev) as (w, central, before):
            w.sub_(_read(corrections))
            # The movement of z takes the place of z_prev, which is not needed any more.
            torch.sub(central, before, out=before).mul_(mu).add_(_read(total))
            _advance(central, before)

    def sma_center(self, weights: Matrix, z: Row, z_prev: Row, numbers: Numbers) -> None:
        """`z' = z + sum_j alpha (w_j - z) + mu (z - z_prev)`, `z_prev = z`, `z = z'`; the rows are only read."""
        with torch.no_grad(), _written(z, z_prev) as (central, before):
            w = _read(weights)
            *_, alpha, mu = numbers.to(w.dtype).unbind()
            total = torch.sub(w, central).sum(0).mul_(alpha)
            _advance(central, torch.sub(central, before, out=before).mul_(mu).add_(total))

    def sgd_row(
        self,
        weights: Row,
        momentum: Row,
        gradient: Row,
        z: Row,
        z_prev: Row,
        task: TaskNumbers,
        kept: TaskNumbers,
        numbers: Numbers,
        synchronise: bool,
    ) -> None:
        """Apply one learner's optimizer step and correction, as `torch.optim.SGD` and SMA do.

        ::

            g = gradient + weight_decay * w;   m = momentum * m + g;   step = lr * (nesterov ? g + momentum * m : m)
            w = w - step - (synchronise ? alpha * (w - z_prev) : 0)

        When synchronising, `sma_center` has moved z, and `z_prev` is the previous z; else `z_prev` is not read. Without
        momentum, m is unchanged. `task` is the learning task's result, `[loss, sum of the gradient, metrics...]`: the
        learner is finite if loss and sum are, and `kept` becomes `[loss, 0 or 1, metrics...]`. A learner that is not
        finite restarts from z with m = 0; its gradient is ignored.
        """
        with torch.no_grad(), _written(weights, momentum) as (w, m):
            told = task[0] + task[1]
            finite = (told - told) == 0  # inf - inf is NaN
            kept.copy_(task)
            kept[1].copy_(finite)
            hyper = numbers.to(w.dtype).unbind()
            moved, momentum_next = sgd_step(w, m, _read(gradient), finite, hyper)
            m.copy_(momentum_next)
            if synchronise:
                alpha = hyper[4]
                moved.addcmul_(torch.sub(w, _read(z_prev)), alpha, value=-1)
            torch.where(finite, moved, _read(z), out=w)

    def sgd_round(
        self,
        weights: Matrix,
        momenta: Matrix,
        gradients: Matrix,
        z: Row,
        z_prev: Row,
        finite: LearnerNumbers,
        numbers: Numbers,
        synchronise: bool,
    ) -> None:
        """Run a whole round: the step of `sgd_row` for every learner, and the central model when synchronising.

        The weights of a learner that is not finite still contribute to the sum of the corrections. A learner without a
        batch is only corrected.
        """
        with torch.no_grad(), _written(weights, momenta, z, z_prev) as (w, m, central, before):
            steps = (finite == 1).unsqueeze(1)
            hyper = numbers.to(w.dtype).unbind()
            moved, velocity = sgd_step(w, m, _read(gradients), steps, hyper)
            m.copy_(_of_those(finite, velocity, m))
            _end_round(w, moved, central, before, finite, hyper if synchronise else ())

    def adam_round(
        self,
        weights: Matrix,
        means: Matrix,
        squares: Matrix,
        gradients: Matrix,
        z: Row,
        z_prev: Row,
        finite: LearnerNumbers,
        counts: LearnerNumbers,
        numbers: AdamNumbers,
        synchronise: bool,
    ) -> None:
        """`sgd_round` with the step of `torch.optim.Adam` or AdamW: `means` and `squares` are the moments.

        `counts` are the learners' step counts, incremented here. `numbers` are `lr, beta1, beta2, epsilon, weight
        decay, whether that is decoupled (0 or 1), alpha, mu`. A learner that restarts has taken no steps.

        References:
            Kingma and Ba: Adam: A method for stochastic optimization, 2015, Algorithm 1.
        """
        with torch.no_grad(), _written(weights, means, squares, z, z_prev) as rows:
            w, mean, square, central, before = rows
            counts.copy_(_of_those(finite, counts + 1, counts))
            count = counts.unsqueeze(1)
            lr, _, second, epsilon, decay, decoupled, *averaging = numbers.to(w.dtype).unbind()
            rests = (1 - numbers[1:3]).to(w.dtype)  # float32 would round them by more than the betas
            corrections = (1 - numbers[1:3] ** count).to(w.dtype)
            g = torch.addcmul(_read(gradients), w, decay * (1 - decoupled))
            m = torch.lerp(mean, g, rests[0])
            v = torch.addcmul(square * second, g * g, rests[1])
            root = v.sqrt() / corrections[:, 1:].sqrt() + epsilon
            moved = torch.addcdiv(w - w * (lr * decay * decoupled), m * (-lr / corrections[:, :1]), root)
            mean.copy_(_of_those(finite, m, mean))
            square.copy_(_of_those(finite, v, square))
            _end_round(w, moved, central, before, finite, averaging if synchronise else ())

    def gather(self, source: Samples, indices: Indices, out: Batch) -> None:
        """`out[i] = source[indices[i]]`; an index out of range is an error, as in PyTorch."""
        with torch.no_grad():
            torch.index_select(source, 0, indices, out=out)


def kernels_for(device: torch.device) -> Kernels:
    """Return a device's kernels: CuPy's on CUDA if available, else PyTorch's, which store the reason."""
    if device.type != "cuda":
        return Kernels()
    return _on_cuda(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _on_cuda(index: int) -> Kernels:
    """Make the CUDA kernels, once per device: a failure would repeat, slowly."""
    try:
        adapter = importlib.import_module("bow.devices.cupy_kernels")
        kernels: Kernels = adapter.CupyKernels(torch.device("cuda", index))
        kernels.launch_once()  # let failures happen here
    except BowError as error:
        return Kernels(str(error))
    except Exception as error:  # any error of driver, compiler or cache folder
        return Kernels(
            f"the CUDA kernels cannot be used ({reason(error)}); reinstall CuPy: "
            f"pip install --force-reinstall 'bow-trainer[{cuda_extra()}]'"
        )
    return kernels


def cuda_extra() -> str:
    """The extra of bow's distribution with the CuPy for the CUDA version that torch is built for."""
    return "cu12" if (torch.version.cuda or "").startswith("12.") else "cu13"


def sgd_step(
    w: Tensor, m: Tensor, gradient: Tensor, finite: Tensor, hyper: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """Return rows and momenta after a step of SGD, as new memory."""
    lr, momentum, weight_decay, nesterov, _, _ = hyper
    # No multiplication by a flag: 0 * NaN is NaN. The row of a learner that is not finite is meaningless.
    gradient = torch.addcmul(gradient, w, weight_decay)
    velocity = torch.addcmul(gradient, m, momentum)
    step = torch.where(nesterov != 0, torch.addcmul(gradient, velocity, momentum), velocity)
    kept = torch.where(finite, torch.where(momentum != 0, velocity, m), 0)
    return torch.addcmul(w, step, lr, value=-1), kept


def _of_those(finite: Tensor, step: Tensor, kept: Tensor, again: Tensor | int = 0) -> Tensor:
    """Select per learner: `step` where finite is 1, `again` where it is 0, `kept` where it is NaN (no batch)."""
    finite = finite.view(-1, *[1] * (step.dim() - 1))
    return torch.where(finite == 1, step, torch.where(finite == 0, again, kept))


def _end_round(w: Tensor, moved: Tensor, z: Tensor, z_prev: Tensor, finite: Tensor, hyper: Sequence[Tensor]) -> None:
    """Write the rows after step and correction, and advance the central model."""
    kept = w
    if hyper:
        *_, alpha, mu = hyper
        corrections = torch.sub(w, z).mul_(alpha)
        moved, kept = moved - corrections, w - corrections
        _advance(z, torch.sub(z, z_prev, out=z_prev).mul_(mu).add_(corrections.sum(0)))
    w.copy_(_of_those(finite, moved, kept, z))


def _advance(z: Tensor, movement: Tensor) -> None:
    """`z_prev = z`, `z = z + movement`, where `movement` is the memory of `z_prev`."""
    following = torch.add(z, movement)
    movement.copy_(z)
    z.copy_(following)


@contextlib.contextmanager
def _written(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield tensors to compute with in place: themselves, or float32 copies that are rounded back at the end."""
    if tensors[0].dtype.itemsize >= 4:
        yield tensors
        return
    wide = tuple(tensor.float() for tensor in tensors)
    yield wide
    for tensor, values in zip(tensors, wide, strict=True):
        tensor.copy_(values)


def _read(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype.itemsize >= 4 else tensor.float()
