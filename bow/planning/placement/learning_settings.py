"""How a policy learns."""

import math
from dataclasses import dataclass, replace
from typing import Self

from bow.errors import SettingError

USUAL_UPDATES = 10_000
"""The counts of `LearningSettings` are meant for trainings of about so many updates."""

LEAST_NATS = 1e-3
"""A policy that is surer than this counts as one that is not."""


@dataclass(frozen=True)
class LearningSettings:
    """How a policy learns; the values are the paper's, and those of its first author's later code where it has none.

    Attributes:
        samples: placements that are drawn for each update, K.
        learning_rate: of Adam.
        decay: what the learning rate is multiplied by now and then.
        decay_every: after so many updates each.
        decay_after: not before so many.
        gradient_norm: to which gradients are clipped.
        baseline_decay: of the moving average that placements are compared with.
        failing_s: seconds that stand for a placement that does not fit or fails; None: 10 times the slowest of the
            first placements that fit.
        mask_failures_after: after so many updates failures have no influence any more.
        is_scaled: whether advantages are divided by their moving root mean square, which the paper does not do.
        noise: at first logits are disturbed by so much of their root mean square before placements are drawn.
        exploring: of this part of the samples, some devices are drawn uniformly, whatever the policy would have, which
            the paper does not do: also a policy that is sure goes on looking at neighbours. The policy learns of these
            samples what becomes an elite, and nothing else: a random choice says nothing about the others.
        random_choices: in each of them so many devices, on average.
        entropy: at first so much is added for each nat of entropy.
        entropy_after: so much at the end.
        least_entropy: where a placement has fewer nats of entropy, a nat is worth more, by as many times: a policy that
            always draws the same learns nothing any more.
        explore_until: noise fades linearly to nothing, and entropy to what it is at the end, over so many updates.
        elites: each update also makes so many of the best placements so far likelier, which the paper's do not.

    Raises:
        SettingError: a value outside its range.

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 3.1. Mirhoseini et
        al.: A hierarchical model for device placement, 2018 (its code in TensorFlow's Grappler).
    """

    samples: int = 8
    learning_rate: float = 0.1
    decay: float = 0.95
    decay_every: int = 50
    decay_after: int = 400
    gradient_norm: float = 1.0
    baseline_decay: float = 0.9
    failing_s: float | None = 100.0
    mask_failures_after: int = 5000
    is_scaled: bool = False
    noise: float = 0.5
    exploring: float = 0.0
    random_choices: float = 1.0
    entropy: float = 0.0
    entropy_after: float = 0.0
    least_entropy: float = 0.0
    explore_until: int = 750
    elites: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "decay_every"):
            if (value := getattr(self, name)) < 1:
                raise SettingError(f"{name} must be at least 1, got {value}")
        for name in ("learning_rate", "gradient_norm"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                raise SettingError(f"{name} must be finite and above 0, got {value}")
        for name in (
            "noise",
            "random_choices",
            "entropy",
            "entropy_after",
            "least_entropy",
            "decay_after",
            "mask_failures_after",
            "explore_until",
            "elites",
        ):
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
        """The same with all counts of updates scaled to a shorter training.

        Example:
            >>> LearningSettings().scaled(1000).mask_failures_after
            500
        """
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
