"""Small graphs and policies for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from bow.planning.placement.policy import Operations, PlacementPolicy, PolicySettings

SMALL = PolicySettings(hidden=12, kind_size=3, attention=5)


def sums(placements: list[tuple[int, ...]]) -> list[float | None]:
    """The more operations have a high device number, the slower; what has none of them on device 0 does not fit."""
    return [1.0 + sum(placement) if 0 in placement else None for placement in placements]


def chain(length: int = 4, devices: int = 3) -> Operations:
    """Operations of two kinds, one behind the other."""
    kinds = tuple("linear" if number % 2 else "embedding" for number in range(length))
    shapes = tuple(((8, 4 + number),) * (1 + number % 2) for number in range(length))
    return Operations(kinds, shapes, tuple((n, n + 1) for n in range(length - 1)), devices)


def small_policy(operations: Operations | None = None, seed: int = 0) -> PlacementPolicy:
    return PlacementPolicy(operations or chain(), SMALL, seed=seed)


def weights(policy: PlacementPolicy) -> Tensor:
    """All of its parameters, in a row."""
    return torch.cat([each.detach().flatten() for each in policy.parameters()])
