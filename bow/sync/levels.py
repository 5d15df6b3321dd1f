"""Two-level model averaging: learners follow their device's reference model, and z averages the reference models."""

from collections.abc import Sequence

import numpy as np
import torch

from bow.errors import SettingError
from bow.sync.base import Rows

REFERENCE, MOVE = "reference", "reference_move"


def share(count: int) -> float:
    """Return the default alpha of a level with `count` members."""
    # `1/count`, as in one level, is unstable for two devices with two learners each: the spectral radius of the
    # averaging is 1.07 with mu = 0.5. With one more in the denominator it is stable for every number of devices and
    # learners.
    return 1 / (count + 1)


def start(rows: Rows) -> None:
    for name in (REFERENCE, MOVE):
        if name not in rows.state:
            rows.state[name] = torch.empty_like(rows.z)
    rows.state[REFERENCE].copy_(rows.z)


def contribute(rows: Rows, alpha: float | None) -> None:
    """Compute `alpha (r - z)` for the device's reference model r; a device's only learner is its reference model."""
    learners, devices = len(rows.weights), len(rows.by_device)
    outer = share(devices) if alpha is None else alpha
    reference, move = rows.state[REFERENCE], rows.state[MOVE]
    if learners == 1:
        reference.copy_(rows.weights[0])
    torch.sub(reference, rows.z, out=rows.total)
    rows.total.mul_(outer)
    torch.neg(rows.total, out=move)
    if learners == 1:
        rows.corrections[0].copy_(rows.total)
        return
    torch.sub(rows.weights, reference, out=rows.corrections)
    rows.corrections.mul_(share(learners) if alpha is None else alpha)
    move.add_(rows.corrections.sum(0))


def apply(rows: Rows) -> None:
    rows.weights.sub_(rows.corrections)
    rows.state[REFERENCE].add_(rows.state[MOVE])


def restart(rows: Rows) -> None:
    rows.state[REFERENCE].copy_(rows.z)


def check(by_device: Sequence[int], alpha: float | None, mu: float) -> None:
    """Reject an alpha with which, without gradients, some deviation from a common point would grow."""
    radius = spectral_radius(by_device, alpha, mu)
    if radius >= 1:
        given = ", ".join(map(str, by_device))
        raise SettingError(
            f"alpha={alpha:g} is unstable in two levels with {given} learners and mu={mu:g}: deviations grow by "
            f"{radius:.3f} a round; leave alpha out"
        )


def spectral_radius(by_device: Sequence[int], alpha: float | None, mu: float) -> float:
    """Return the factor per round, without gradients, of the slowest decay to a common point."""
    # The state has the mean of the learners and the reference model of every device, z and z_prev; the eigenvalue 1 of
    # the common point itself is excluded.
    devices = len(by_device)
    z, z_prev = 2 * devices, 2 * devices + 1
    outer = share(devices) if alpha is None else alpha
    step = np.zeros((2 * devices + 2, 2 * devices + 2))
    for device, learners in enumerate(by_device):
        mean, reference = 2 * device, 2 * device + 1
        if learners == 1:
            step[mean, [mean, z]] = 1 - outer, outer
            step[reference] = step[mean]
            step[z, mean] += outer
            continue
        inner = share(learners) if alpha is None else alpha
        step[mean, [mean, reference]] = 1 - inner, inner
        step[reference, [reference, mean, z]] = 1 - learners * inner - outer, learners * inner, outer
        step[z, reference] += outer
    step[z, z] += 1 - devices * outer + mu
    step[z, z_prev] -= mu
    step[z_prev, z] = 1
    sizes = sorted(abs(np.linalg.eigvals(step)))
    return float(sizes[-2]) if abs(sizes[-1] - 1) < 1e-9 else float(sizes[-1])
