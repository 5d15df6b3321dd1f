"""An independent implementation of every synchroniser in plain NumPy and float64, to test bow against.

Written from the specification (Algorithms 1 and 2 as stated on the design page) and not from `bow/sync`: it
shares no code, layout or library with bow. Learners are processed one after another, gradients are derived by hand,
and the optimizers are the formulas in torch's documentation. It is slow, short, and meant to be read.

References:
    A. Koliousis et al., CROSSBOW: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers, 2019.
    A. Budea, TensorBow, 2019, section 2.1 (Algorithm 1: S-SGD, Algorithm 2: SMA).
    S. Zhang, A. Choromanska, Y. LeCun, Deep Learning with Elastic Averaging SGD, 2015.
    S. Stich, Local SGD Converges Fast and Communicates Little, 2019.
    A. Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Batch = tuple[NDArray[np.float64], NDArray[np.int64]]


# Models: the weights are one flat vector, in the order in which a torch module lists its parameters.


def _softmax_cross_entropy(logits: Vector, labels: NDArray[np.int64]) -> tuple[float, Vector]:
    """Mean cross-entropy of `logits [batch, classes]`, and its gradient with respect to them."""
    samples = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    gradient = np.exp(log_probabilities)
    gradient[samples, labels] -= 1.0
    return float(-log_probabilities[samples, labels].mean()), gradient / len(labels)


class Model(abc.ABC):
    """A model whose loss and gradient are functions of a flat weight vector."""

    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_parameters(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def split(self, w: Vector) -> list[Vector]:
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        return [part.reshape(shape) for part, shape in zip(np.split(w, ends[:-1]), self.shapes, strict=True)]

    @abc.abstractmethod
    def loss_and_gradient(self, w: Vector, batch: Batch) -> tuple[float, Vector]:
        """The mean loss of `batch` at the weights `w`, and its gradient as a flat vector."""


class SoftmaxRegression(Model):
    """`torch.nn.Linear(features, classes)` under mean cross-entropy."""

    def __init__(self, features: int, classes: int) -> None:
        self.shapes = ((classes, features), (classes,))

    def loss_and_gradient(self, w: Vector, batch: Batch) -> tuple[float, Vector]:
        weight, bias = self.split(w)
        inputs, labels = batch
        loss, d_logits = _softmax_cross_entropy(inputs @ weight.T + bias, labels)
        return loss, np.concatenate([(d_logits.T @ inputs).ravel(), d_logits.sum(axis=0)])


class TanhNetwork(Model):
    """`Linear(features, hidden)`, tanh, `Linear(hidden, classes)` under mean cross-entropy."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        self.shapes = ((hidden, features), (hidden,), (classes, hidden), (classes,))

    def loss_and_gradient(self, w: Vector, batch: Batch) -> tuple[float, Vector]:
        weight1, bias1, weight2, bias2 = self.split(w)
        inputs, labels = batch
        hidden = np.tanh(inputs @ weight1.T + bias1)
        loss, d_logits = _softmax_cross_entropy(hidden @ weight2.T + bias2, labels)
        d_before_tanh = (d_logits @ weight2) * (1.0 - hidden**2)
        return loss, np.concatenate(
            [
                (d_before_tanh.T @ inputs).ravel(),
                d_before_tanh.sum(axis=0),
                (d_logits.T @ hidden).ravel(),
                d_logits.sum(axis=0),
            ]
        )


# Optimizers, as torch.optim defines them; the learning rate is an argument of every step, as set by a scheduler.


class Optimizer(Protocol):
    def step(self, w: Vector, gradient: Vector, lr: float) -> Vector: ...


@dataclass
class SGD:
    """`torch.optim.SGD`: the first velocity is the gradient itself, undamped."""

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    velocity: Vector | None = None

    def step(self, w: Vector, gradient: Vector, lr: float) -> Vector:
        d = gradient + self.weight_decay * w
        if self.momentum == 0.0:
            return w - lr * d
        if self.velocity is None:
            self.velocity = d.copy()
        else:
            self.velocity = self.momentum * self.velocity + (1.0 - self.dampening) * d
        return w - lr * (d + self.momentum * self.velocity if self.nesterov else self.velocity)


@dataclass
class AdamW:
    """`torch.optim.AdamW`: weight decay applied to the weights, moments corrected for their start at zero."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    steps: int = 0
    first: Vector | float = 0.0
    second: Vector | float = 0.0

    def step(self, w: Vector, gradient: Vector, lr: float) -> Vector:
        beta1, beta2 = self.betas
        self.steps += 1
        self.first = beta1 * self.first + (1.0 - beta1) * gradient
        self.second = beta2 * self.second + (1.0 - beta2) * gradient**2
        unbiased_first = self.first / (1.0 - beta1**self.steps)
        unbiased_second = self.second / (1.0 - beta2**self.steps)
        return w * (1.0 - lr * self.weight_decay) - lr * unbiased_first / (np.sqrt(unbiased_second) + self.eps)


# Synchronisers.


@dataclass
class Learner:
    """A replica: its weights and its own optimizer."""

    w: Vector
    optimizer: Optimizer


class Synchroniser(abc.ABC):
    """k learners and the central model z, advanced one round at a time.

    Args:
        model: computes loss and gradient.
        optimizer: creates an optimizer for a learner.
        learners: k.
        start: w_0, the initial weights of every learner and z.
        every: round t (from 0) ends with a synchronisation task if (t + 1) % every == 0.
    """

    def __init__(
        self, model: Model, optimizer: Callable[[], Optimizer], learners: int, start: Vector, *, every: int = 1
    ) -> None:
        self.model = model
        self.new_optimizer = optimizer
        self.z = start.copy()
        self.learners = [Learner(start.copy(), optimizer()) for _ in range(learners)]
        self.every = every
        self.rounds = 0

    @property
    def k(self) -> int:
        return len(self.learners)

    @property
    def weights(self) -> Vector:
        return np.stack([learner.w for learner in self.learners])

    def add_learner(self) -> None:
        self.learners.append(Learner(self.z.copy(), self.new_optimizer()))

    def remove_learner(self) -> None:
        self.learners.pop()

    def round(self, batches: Sequence[Batch | None], lr: float) -> Vector:
        """Train one round; the losses [k] are those before the step, NaN for a learner without a batch."""
        losses = np.full(self.k, np.nan)
        gradients: list[Vector | None] = [None] * self.k
        for j, (learner, batch) in enumerate(zip(self.learners, batches, strict=True)):
            if batch is not None:
                losses[j], gradients[j] = self.model.loss_and_gradient(learner.w, batch)
        self.update(gradients, lr, synchronises=(self.rounds + 1) % self.every == 0)
        self.rounds += 1
        return losses

    @abc.abstractmethod
    def update(self, gradients: list[Vector | None], lr: float, *, synchronises: bool) -> None:
        """Update the learners and z with this round's gradients; None is a learner that sits out."""

    def step_learners(self, gradients: Iterable[Vector | None], lr: float) -> None:
        for learner, gradient in zip(self.learners, gradients, strict=True):
            if gradient is not None:
                learner.w = learner.optimizer.step(learner.w, gradient, lr)

    def copy_z_to_learners(self) -> None:
        for learner in self.learners:
            learner.w = self.z.copy()

    def mean_of_learners(self) -> Vector:
        return sum(learner.w for learner in self.learners) / self.k

    def settle(self) -> None:  # noqa: B027 - nothing to do by default
        """Update z before an evaluation; only needed by synchronisers that never average."""


@dataclass
class DropDetector:
    """Detects when the learning rate has fallen to half of its maximum since the last restart."""

    all_time_peak: float = 0.0
    maximum: float = 0.0
    pending: bool = False

    def look(self, lr: float) -> None:
        self.all_time_peak = max(self.all_time_peak, lr)
        if lr == 0.0 or lr < 0.01 * self.all_time_peak:
            return
        self.maximum = max(self.maximum, lr)
        self.pending = self.pending or lr <= 0.5 * self.maximum

    def restarted(self, lr: float) -> None:
        self.pending = False
        self.maximum = lr


class SMA(Synchroniser):
    """Algorithm 2: corrections from the weights before the step, momentum mu on the central model.

    With one learner and no explicit alpha, z is that learner.
    """

    def __init__(
        self,
        *args,
        alpha: float | None = None,
        mu: float = 0.0,
        restart: str | None = "drop",
        **kwargs,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.alpha, self.mu, self.restart = alpha, mu, restart
        self.z_prev = self.z.copy()
        self.drop = DropDetector()
        self.restarts: list[int] = []

    def update(self, gradients: list[Vector | None], lr: float, *, synchronises: bool) -> None:
        self.drop.look(lr)
        if self.k == 1 and self.alpha is None:
            self.step_learners(gradients, lr)
            self.z = self.learners[0].w.copy()
            self.z_prev = self.z.copy()  # if a second learner is added, averaging starts without momentum
        elif synchronises:
            self.average(gradients, lr)
        else:
            self.step_learners(gradients, lr)
        if self.restart == "drop" and self.drop.pending and synchronises:
            self.copy_z_to_learners()
            self.drop.restarted(lr)
            self.restarts.append(self.rounds)

    def average(self, gradients: list[Vector | None], lr: float) -> None:
        alpha = 1.0 / self.k if self.alpha is None else self.alpha
        corrections = [alpha * (learner.w - self.z) for learner in self.learners]
        self.step_learners(gradients, lr)
        for learner, correction in zip(self.learners, corrections, strict=True):
            learner.w = learner.w - correction
        z_next = self.z + sum(corrections) + self.mu * (self.z - self.z_prev)
        self.z_prev, self.z = self.z, z_next


class EASGD(SMA):
    """Elastic averaging: SMA without momentum of the central model, and without restarts."""

    def __init__(self, *args, alpha: float | None = None, **kwargs) -> None:
        super().__init__(*args, alpha=alpha, mu=0.0, restart=None, **kwargs)


class SSGD(Synchroniser):
    """Algorithm 1: every learner steps with the mean of the available gradients.

    Learners stay equal only if their optimizers do: a new one copies the state of learner 0.
    """

    def add_learner(self) -> None:
        self.learners.append(copy.deepcopy(self.learners[0]))

    def update(self, gradients: list[Vector | None], lr: float, *, synchronises: bool) -> None:
        present = [gradient for gradient in gradients if gradient is not None]
        mean = sum(present) / len(present)
        self.step_learners([mean] * self.k, lr)
        self.z = self.learners[0].w.copy()


class LocalSGD(Synchroniser):
    """Learners train independently and are replaced by their mean."""

    def update(self, gradients: list[Vector | None], lr: float, *, synchronises: bool) -> None:
        self.step_learners(gradients, lr)
        if synchronises:
            self.z = self.mean_of_learners()
            self.copy_z_to_learners()


class DiLoCo(Synchroniser):
    """As LocalSGD, but z takes a step of Nesterov SGD towards the mean."""

    def __init__(self, *args, outer_lr: float, outer_momentum: float, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.outer_lr = outer_lr
        self.outer = SGD(momentum=outer_momentum, nesterov=True)

    def update(self, gradients: list[Vector | None], lr: float, *, synchronises: bool) -> None:
        self.step_learners(gradients, lr)
        if synchronises:
            self.z = self.outer.step(self.z, self.z - self.mean_of_learners(), self.outer_lr)
            self.copy_z_to_learners()


class ASGD(Synchroniser):
    """Round-robin: learner j adds its step to z, and takes the resulting z."""

    def update(self, gradients: list[Vector | None], lr: float, *, synchronises: bool) -> None:
        before = [learner.w for learner in self.learners]
        self.step_learners(gradients, lr)
        for learner, w_before in zip(self.learners, before, strict=True):
            self.z = self.z + (learner.w - w_before)
            learner.w = self.z.copy()


class Independent(Synchroniser):
    """Independent learners; their mean is computed at the end, and when a new learner starts from it."""

    def add_learner(self) -> None:
        self.settle()
        super().add_learner()

    def update(self, gradients: list[Vector | None], lr: float, *, synchronises: bool) -> None:
        self.step_learners(gradients, lr)

    def settle(self) -> None:
        self.z = self.mean_of_learners()


# Trajectories.


@dataclass
class Trajectory:
    """Results of a run: z [rounds, parameters], weights [rounds][k, parameters], losses [rounds][k]."""

    z: list[Vector] = field(default_factory=list)
    weights: list[Vector] = field(default_factory=list)
    losses: list[Vector] = field(default_factory=list)


def train(synchroniser: Synchroniser, batches: Iterable[Sequence[Batch | None]], lrs: Iterable[float]) -> Trajectory:
    """Train a round for every entry of `batches`, at the corresponding learning rate in `lrs`."""
    trajectory = Trajectory()
    for deal, lr in zip(batches, lrs, strict=False):
        trajectory.losses.append(synchroniser.round(deal, lr))
        trajectory.z.append(synchroniser.z.copy())
        trajectory.weights.append(synchroniser.weights)
    return trajectory


def random_batches(
    rounds: int, learners: int, batch_size: int, features: int, classes: int, *, seed: int
) -> list[list[Batch]]:
    """Gaussian inputs with labels that depend on them, so that they can be learned."""
    random = np.random.default_rng(seed)
    teacher = random.normal(size=(features, classes))
    inputs = random.normal(size=(rounds, learners, batch_size, features))
    noise = random.normal(size=(rounds, learners, batch_size, classes))
    labels = (inputs @ teacher + noise).argmax(axis=-1)
    return [[(inputs[t, j], labels[t, j]) for j in range(learners)] for t in range(rounds)]


def spectral_radius(k: int, alpha: float, mu: float) -> float:
    """Largest growth per synchronisation of the mean deviation and the velocity of z, without gradients."""
    return float(np.abs(np.linalg.eigvals([[1.0 - alpha * (1 + k), -mu], [k * alpha, mu]])).max())
