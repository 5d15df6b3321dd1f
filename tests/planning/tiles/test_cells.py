"""Which device has which part of which weight."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from bow.planning.tiles import ProcessGroup
from tests.planning.tiles.equality import TOLERANCE, by_pytorch, by_tiles, difference, task
from tests.planning.tiles.strategies import random_splits


class Positions(nn.Module):
    """Positions for longer samples than there are, and a row of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.rand(7, 3))
        self.layer = nn.Linear(3, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        placed = inputs + self.positions[: inputs.shape[1]]
        return self.layer(placed).sum(2) + placed @ self.layer.weight[1]


@pytest.mark.parametrize("seed", range(3))
def test_what_nobody_reads_of_a_weight_is_kept_and_decays(seed: int) -> None:
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    given = task("positions", Positions(), (torch.rand(4, 5, 3), torch.rand(4, 5)), mse_loss, optimizer)
    splits = random_splits(given.captured.graph, 1, random.Random(seed))
    found = by_tiles(given, given.strategy(splits), ProcessGroup(torch.device("cpu"), is_alone=True))
    assert difference(found, by_pytorch(given)) < TOLERANCE
