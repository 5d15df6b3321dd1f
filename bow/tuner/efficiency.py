"""Statistical efficiency: the value of a sample with k learners, relative to one; docs/design.md derives it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """Signal and noise of random vectors of the same distribution."""

    signal: float  # squared norm of their mean, `|E v|^2`; estimates can be below 0
    noise: float  # trace of their covariance, `E |v - E v|^2`


def moments(mean_square: float, square_of_mean: float, vectors: int) -> Moments:
    """Return unbiased estimates from k independent vectors: gradients of learners, or their distances from z."""
    noise = (mean_square - square_of_mean) * vectors / (vectors - 1)
    return Moments(signal=square_of_mean - noise / vectors, noise=noise)


class RunningMoments:
    """Exponential moving average of moments over rounds, weighted by their degrees of freedom."""

    def __init__(self, memory: float = 100.0) -> None:
        self._decay = math.exp(-1 / memory)
        self._weight = self._signal = self._noise = 0.0

    def add(self, mean_square: float, square_of_mean: float, vectors: int) -> None:
        """Add a round, as in `moments`; rounds with one learner or values that are not finite are ignored."""
        if vectors < 2 or not (math.isfinite(mean_square) and math.isfinite(square_of_mean)):
            return
        # Numerator and denominator of the noise scale separately: a mean of ratios is biased, and far too noisy.
        found, weight = moments(mean_square, square_of_mean, vectors), vectors - 1
        self._weight = self._decay * self._weight + weight
        self._signal = self._decay * self._signal + weight * found.signal
        self._noise = self._decay * self._noise + weight * found.noise

    @property
    def value(self) -> Moments | None:
        return Moments(self._signal / self._weight, self._noise / self._weight) if self._weight else None

    def noise_scale(self, batch_size: int) -> float | None:
        """Return `tr(Sigma) / |G|^2` in samples, if the vectors are gradients of batches of this size."""
        found = self.value
        if found is None:
            return None
        return batch_size * found.noise / found.signal if found.signal > 0 else math.inf


def noise_efficiency(noise_scale: float, batch_size: int, learners: int) -> float:
    """Return the efficiency with this many learners due to gradient noise alone."""
    if math.isinf(noise_scale):
        return 1.0
    return (noise_scale + batch_size) / (noise_scale + learners * batch_size)


def spread_factor(root: float, momentum: float) -> float:
    """V of docs/design.md: accumulation of gradient noise in the learners' distances; infinite for root >= 1."""
    if root >= 1:
        return math.inf
    both = root * momentum
    return (1 + both) / ((1 - both) * (1 - root**2) * (1 - momentum**2))


def repulsion(spread: float, noise: float, lr: float, alpha: float, momentum: float = 0.0) -> float:
    """Lambda of docs/design.md: relative growth of the learners' distances per round; negative if they shrink."""
    if not noise > 0 or not lr > 0:
        return 0.0
    wanted = spread / (lr**2 * noise)
    low, high = 0.0, 1.0
    for _ in range(60):  # V grows with the root
        middle = (low + high) / 2
        low, high = (middle, high) if spread_factor(middle, momentum) < wanted else (low, middle)
    return low - (1 - alpha)


def coherence(repulsion: float, alpha: float, momentum: float = 0.0) -> float:
    """Return the part of the spread that is gradient noise, which averaging removes."""
    if repulsion <= 0:
        return 1.0
    return spread_factor(1 - alpha, momentum) / spread_factor(1 - alpha + repulsion, momentum)


@dataclass(frozen=True)
class StatisticalEfficiency:
    """Statistical efficiency, as a function of the number of learners of this device."""

    noise_scale: float | None
    batch_size: int
    repulsion: float = 0.0
    momentum: float = 0.0
    alpha: float | None = None

    def __call__(self, learners: int) -> float:
        if learners == 1 or self.noise_scale is None:
            return 1.0
        alpha = 1 / learners if self.alpha is None else self.alpha
        held = coherence(self.repulsion, alpha, self.momentum)
        return noise_efficiency(self.noise_scale, self.batch_size, learners) * held
