"""The kernels' formulas in NumPy, in float64; nothing is changed in place, results are returned."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Numbers(NamedTuple):
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.02
    nesterov: float = 0.0
    alpha: float = 0.3
    mu: float = 0.6


def sma_contribute(w: Array, z: Array, alpha: float) -> tuple[Array, Array]:
    """Corrections and their sum."""
    corrections = alpha * (w - z)
    return corrections, corrections.sum(axis=0)


def sma_apply(
    w: Array, corrections: Array, z: Array, z_prev: Array, total: Array, mu: float
) -> tuple[Array, Array, Array]:
    """The next w, z and z_prev."""
    return w - corrections, z + total + mu * (z - z_prev), z


def sma_center(w: Array, z: Array, z_prev: Array, numbers: Numbers) -> Array:
    """The next z."""
    return z + sum(numbers.alpha * (row - z) for row in w) + numbers.mu * (z - z_prev)


def sgd_row(
    w: Array, m: Array, g: Array, z: Array, z_prev: Array, finite: bool, numbers: Numbers, synchronise: bool
) -> tuple[Array, Array]:
    """The next w and m of one learner."""
    if not finite:
        return z, np.zeros_like(m)
    g = g + numbers.weight_decay * w
    step = numbers.lr * g
    if numbers.momentum:
        m = numbers.momentum * m + g
        step = numbers.lr * (g + numbers.momentum * m if numbers.nesterov else m)
    return w - step - (numbers.alpha * (w - z_prev) if synchronise else 0.0), m


def sgd_round(
    w: Array, m: Array, g: Array, z: Array, z_prev: Array, finite: list[float], numbers: Numbers, synchronise: bool
) -> tuple[Array, Array, Array, Array]:
    """The next w, m, z and z_prev."""
    z_next = sma_center(w, z, z_prev, numbers) if synchronise else z
    rows = [sgd_row(w[j], m[j], g[j], z_next, z, bool(finite[j]), numbers, synchronise) for j in range(len(w))]
    w_next, m_next = (np.stack(column) for column in zip(*rows, strict=True))
    out = np.isnan(finite)
    w_next[out] = w[out] - (numbers.alpha * (w - z)[out] if synchronise else 0.0)
    m_next[out] = m[out]
    return w_next, m_next, z_next, (z if synchronise else z_prev)


class AdamNumbers(NamedTuple):
    lr: float = 0.1
    first: float = 0.9
    second: float = 0.99
    epsilon: float = 1e-3
    weight_decay: float = 0.02
    decoupled: float = 0.0
    alpha: float = 0.3
    mu: float = 0.6


def adam_round(
    w: Array,
    m: Array,
    v: Array,
    g: Array,
    z: Array,
    z_prev: Array,
    finite: list[float],
    counts: list[float],
    numbers: AdamNumbers,
    synchronise: bool,
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """The next w, m, v, z, z_prev and counts."""
    n = numbers
    z_next = z + sum(n.alpha * (row - z) for row in w) + n.mu * (z - z_prev) if synchronise else z
    nexts = [each.copy() for each in (w, m, v)]
    count = np.array(counts)
    for j, each in enumerate(finite):
        correction = n.alpha * (w[j] - z) if synchronise else 0.0
        if each == 0:
            count[j] = 0
            for own, start in zip(nexts, (z_next, 0.0, 0.0), strict=True):
                own[j] = start
            continue
        if each == 1:
            count[j] += 1
            gradient = g[j] + (0 if n.decoupled else n.weight_decay * w[j])
            mean = n.first * m[j] + (1 - n.first) * gradient
            square = n.second * v[j] + (1 - n.second) * gradient**2
            unbiased = mean / (1 - n.first ** count[j]), square / (1 - n.second ** count[j])
            kept = w[j] * (1 - n.lr * n.weight_decay) if n.decoupled else w[j]
            moved = kept - n.lr * unbiased[0] / (np.sqrt(unbiased[1]) + n.epsilon)
            nexts[0][j], nexts[1][j], nexts[2][j] = moved, mean, square
        nexts[0][j] -= correction
    return nexts[0], nexts[1], nexts[2], z_next, (z if synchronise else z_prev), count
