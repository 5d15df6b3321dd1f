"""From measured times to a loss: signals, the baseline that they are compared with, and what is left out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FAILING_FACTOR = 10.0
"""Without a value of its own, failing counts as so many times the slowest placement of the first that fit."""


@dataclass
class Baseline:
    """The moving average of signals, which begins at the failing signal, so that at first all that fits is good news.

        R = sqrt(time),  A = R - B,  B <- decay * B + (1 - decay) * mean(R)

    Where the failing time is not given, it is 10 times that of the slowest placement in the first batch in which any
    fits; before, all are as bad as each other, and nothing is to be learnt.

    Attributes:
        decay: of the average.
        failing_s: seconds that stand for a placement that does not fit or fails; None: not known yet.
        is_scaled: whether advantages are divided by the moving root of their mean square: step times of microseconds
            then give gradients of the same size as those of seconds, also when all placements are nearly alike.
        value: B; None: there was no signal yet.
        square: the moving mean square of advantages; None: there was none yet.

    Example:
        >>> baseline = Baseline(failing_s=100.0)
        >>> baseline.advantages([4.0, None], mask_failures=False).tolist()
        [-8.0, 0.0]
        >>> baseline.value  # 0.9 * 10 + 0.1 * (2 + 10) / 2
        9.6

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 3.1. Williams:
        Simple statistical gradient-following algorithms for connectionist reinforcement learning, 1992.
    """

    decay: float = 0.9
    failing_s: float | None = None
    is_scaled: bool = False
    value: float | None = None
    square: float | None = None

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
    """Times as they can be learnt from: what is not a finite time above 0 is a failure.

    Example:
        >>> sanitised([0.5, float("nan"), None, float("inf"), -1.0])
        [0.5, None, None, None, None]
    """
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
