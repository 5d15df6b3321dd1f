"""REINFORCE for placements: its settings, signals and baseline, elites, loss, and the optimizer's step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from bow.errors import SettingError

USUAL_UPDATES = 10_000  # The counts of `LearningSettings` are meant for trainings of about so many updates

LEAST_NATS = 1e-3  # A policy that is surer than this counts as one that is not


@dataclass(frozen=True)
class LearningSettings:
    """How a policy learns; the values are the paper's, and those of its first author's later code where it has none."""

    samples: int = 8  # placements that are drawn for each update, K
    learning_rate: float = 0.1  # of Adam
    decay: float = 0.95  # what the learning rate is multiplied by now and then
    decay_every: int = 50  # after so many updates each
    decay_after: int = 400  # not before so many
    gradient_norm: float = 1.0  # to which gradients are clipped
    baseline_decay: float = 0.9  # of the moving average that placements are compared with
    # Seconds that stand for a placement that does not fit or fails; None: 10 times the slowest of the first placements
    # that fit.
    failing_s: float | None = 100.0
    mask_failures_after: int = 5000  # after so many updates failures have no influence any more
    # Whether advantages are divided by their moving root mean square, which the paper does not do.
    is_scaled: bool = False
    noise: float = 0.5  # at first logits are disturbed by so much of their root mean square before placements are drawn
    # Of this part of the samples, some devices are drawn uniformly, whatever the policy would have, which the paper
    # does not do: also a policy that is sure goes on looking at neighbours. The policy learns of these samples what
    # becomes an elite, and nothing else: a random choice says nothing about the others.
    exploring: float = 0.0
    random_choices: float = 1.0  # in each of them so many devices, on average
    entropy: float = 0.0  # at first so much is added for each nat of entropy
    entropy_after: float = 0.0  # so much at the end
    # Where a placement has fewer nats of entropy, a nat is worth more, by as many times: a policy that always draws the
    # same learns nothing any more.
    least_entropy: float = 0.0
    # Noise fades linearly to nothing, and entropy to what it is at the end, over so many updates.
    explore_until: int = 750
    elites: int = 0  # each update also makes so many of the best placements so far likelier, which the paper's do not

    def __post_init__(self) -> None:
        for name in ("samples", "decay_every"):
            if (value := getattr(self, name)) < 1:
                raise SettingError(f"{name} must be at least 1, got {value}")
        for name in ("learning_rate", "gradient_norm"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                raise SettingError(f"{name} must be finite and above 0, got {value}")
        counts = ("decay_after", "mask_failures_after", "explore_until", "elites")
        for name in (*counts, "noise", "random_choices", "entropy", "entropy_after", "least_entropy"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                raise SettingError(f"{name} must be finite and at least 0, got {value}")
        if not 0 < self.decay <= 1:
            raise SettingError(f"decay must be above 0 and at most 1, got {self.decay}")
        for name in ("baseline_decay", "exploring"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise SettingError(f"{name} must be at least 0 and below 1, got {value}")
        if self.failing_s is not None and not (math.isfinite(self.failing_s) and self.failing_s > 0):
            raise SettingError(f"failing_s must be finite and above 0, got {self.failing_s}")

    def scaled(self, updates: int) -> Self:
        """The same with all counts of updates scaled to a shorter training."""
        part = min(1.0, updates / USUAL_UPDATES)
        return replace(
            self,
            decay_every=max(1, round(part * self.decay_every)),
            decay_after=round(part * self.decay_after),
            mask_failures_after=round(part * self.mask_failures_after),
            explore_until=round(part * self.explore_until),
        )

    def rate(self, update: int) -> float:
        """The learning rate of an update."""
        return self.learning_rate * self.decay ** (max(0, update - self.decay_after) // self.decay_every)

    def noise_at(self, update: int) -> float:
        """How much logits are disturbed for an update."""
        return self.noise * self._early(update)

    @property
    def explorers(self) -> int:
        """So many of the samples of an update explore."""
        return int(self.exploring * self.samples)

    def entropy_at(self, update: int, nats: float) -> float:
        """What a nat of entropy is worth in an update."""
        usual = self.entropy_after + (self.entropy - self.entropy_after) * self._early(update)
        return usual * max(1.0, self.least_entropy / max(nats, LEAST_NATS))

    def _early(self, update: int) -> float:
        return max(0.0, 1 - update / self.explore_until) if self.explore_until else 0.0


FAILING_FACTOR = 10.0
"""Without a value of its own, failing counts as so many times the slowest placement of the first that fit."""


@dataclass
class Baseline:
    """The moving average of signals, which begins at the failing signal, so that at first all that fits is good news.

        R = sqrt(time),  A = R - B,  B <- decay * B + (1 - decay) * mean(R)

    Where the failing time is not given, it is 10 times that of the slowest placement in the first batch in which any
    fits; before, all are as bad as each other, and nothing is to be learnt.
    """

    decay: float = 0.9  # of the average
    failing_s: float | None = None  # seconds that stand for a placement that does not fit or fails; None: not known yet
    # Whether advantages are divided by the moving root of their mean square: step times of microseconds then give
    # gradients of the same size as those of seconds, also when all placements are nearly alike.
    is_scaled: bool = False
    value: float | None = None  # B; None: there was no signal yet
    square: float | None = None  # the moving mean square of advantages; None: there was none yet

    def advantages(self, times: Sequence[float | None], *, mask_failures: bool) -> Tensor:
        """How much worse than usual placements are, float64; 0 for those that shall have no influence."""
        signals = self._signals(times, mask_failures)
        known = [signal for signal in signals if signal is not None]
        if not known:
            return torch.zeros(len(times), dtype=torch.float64)
        assert self.failing_s is not None
        baseline = math.sqrt(self.failing_s) if self.value is None else self.value
        self.value = self.decay * baseline + (1 - self.decay) * math.fsum(known) / len(known)
        scale = self._scale([signal - baseline for signal in known])
        values = [0.0 if signal is None else (signal - baseline) / scale for signal in signals]
        return torch.tensor(values, dtype=torch.float64)

    def _signals(self, times: Sequence[float | None], mask_failures: bool) -> list[float | None]:
        slowest = max((time for time in times if time is not None), default=None)
        if self.failing_s is None and slowest is not None:
            self.failing_s = FAILING_FACTOR * slowest
        failing = None if mask_failures or self.failing_s is None else math.sqrt(self.failing_s)
        return [failing if time is None else math.sqrt(time) for time in times]

    def _scale(self, advantages: Sequence[float]) -> float:
        if not self.is_scaled:
            return 1.0
        square = math.fsum(each * each for each in advantages) / len(advantages)
        self.square = square if self.square is None else self.decay * self.square + (1 - self.decay) * square
        return math.sqrt(self.square) or 1.0


def sanitised(times: Sequence[float | None]) -> list[float | None]:
    """Times as they can be learnt from: what is not a finite time above 0 is a failure."""
    return [time if time is not None and math.isfinite(time) and time > 0 else None for time in times]


def policy_loss(advantages: Tensor, log_probabilities: Tensor, entropies: Tensor, entropy_weight: float) -> Tensor:
    """What is minimised: its gradient is the policy gradient's estimate, less that of the entropy.

        loss = 1/K sum_k A_k log p(P_k) - entropy_weight * 1/K sum_k H_k - 1/E sum_e log p(P_e)

    with the K placements that were drawn for this update, and E elites behind them, if there are any.
    """
    count = len(advantages)
    drawn, elites = log_probabilities[:count], log_probabilities[count:]
    loss = (advantages.to(drawn.dtype) * drawn).mean()
    if entropy_weight:
        loss = loss - entropy_weight * entropies[:count].mean()
    return loss - elites.mean() if len(elites) else loss


@dataclass
class Elites:
    """The best placements so far, each once, the fastest first.

    A policy that is told of each placement only once forgets the best: with a few thousand samples in all, most of
    what they say is lost. So what was best is repeated with every update. It is the policy's own, and no other's.

    References:
        Oh, Guo, Singh, Lee: Self-imitation learning, 2018. Gao, Chen, Li: Post: device placement with cross-entropy
        minimization and proximal policy optimization, 2018.
    """

    count: int
    found: tuple[tuple[float, tuple[int, ...]], ...] = ()

    @property
    def placements(self) -> list[tuple[int, ...]]:
        """The fastest first."""
        return [placement for _, placement in self.found]

    def add(self, placements: Sequence[tuple[int, ...]], times: Sequence[float | None]) -> None:
        """Look at what was drawn."""
        if self.count:
            pairs = zip(times, placements, strict=True)
            fits = {(time, placement) for time, placement in pairs if time is not None}
            self.found = tuple(sorted({*self.found, *fits})[: self.count])


class Updater:
    """Adam with a learning rate that decays, and clipped gradients; what is not finite is left out.

    References:
        Kingma, Ba: Adam: A method for stochastic optimization, 2015.
    """

    def __init__(self, policy: nn.Module, settings: LearningSettings) -> None:
        self._parameters = list(policy.parameters())
        self._settings = settings
        self._adam = torch.optim.Adam(self._parameters, lr=settings.learning_rate, foreach=True)
        self.updates = 0  # with those left out
        self.skipped = 0  # left out, because a gradient was not finite

    def update(self) -> bool:
        """Change the parameters by their gradients; whether it was done."""
        # Where all gradients are 0 there was nothing to learn, such as only failures that are masked: then Adam's
        # momentum does not move the parameters either.
        norm = nn.utils.clip_grad_norm_(self._parameters, self._settings.gradient_norm)
        rate = self._settings.rate(self.updates)
        self.updates += 1
        self.skipped += not norm.isfinite()
        if not norm.isfinite() or norm == 0:
            return False
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        return True


def flat_gradients(policy: nn.Module) -> Tensor:
    """All gradients one behind the other; 0 for parameters that have none."""
    pairs = ((each, each.grad) for each in policy.parameters())
    return torch.cat([(each.new_zeros(each.numel()) if grad is None else grad.flatten()) for each, grad in pairs])


def set_gradients(policy: nn.Module, gradients: Tensor) -> None:
    """Set all gradients."""
    parameters = list(policy.parameters())
    parts = torch.split(gradients, [each.numel() for each in parameters])
    for each, part in zip(parameters, parts, strict=True):
        each.grad = part.view_as(each).clone()
