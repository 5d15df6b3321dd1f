"""Small forms of networks, and something of everything."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bow.models.networks import NETWORKS
from tests.planning.tiles.equality import Task, task

SIX = ("alexnet", "inception", "resnet101", "rnntc", "rnnlm", "nmt")
"""The networks of Jia et al., 2018, table 3."""

# Where batch norm has few samples a change of 1e-15 in the weights grows a hundredfold in every step, by PyTorch alone
# and with a learning rate of 1e-3; with these it stays below 1e-9 for five steps.
SAMPLES = {"inception": 8, "resnet101": 8}
RATES = {"inception": 1e-5, "resnet101": 1e-5}


def network(name: str) -> Task:
    """One of the six, small."""
    found = NETWORKS[name]
    torch.manual_seed(0)
    batch = found.batch("tiny", samples=SAMPLES.get(name))
    return task(name, found.build("tiny"), batch, found.loss, optimizers(name)["SGD"])


def optimizers(name: str) -> dict[str, Callable[..., torch.optim.Optimizer]]:
    """By name: what trains a network."""
    rate = RATES.get(name)
    return {
        "SGD": functools.partial(torch.optim.SGD, lr=rate or 1e-2, momentum=0.9, weight_decay=1e-4),
        "AdamW": functools.partial(torch.optim.AdamW, lr=rate or 1e-3),
    }


class Mixed(nn.Module):
    """Halos, groups, batch norm, a shortcut, concatenation, attention, a cell that is called twice, tied weights."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=3)
        self.mixer = nn.Linear(6, 6)
        self.dropout = nn.Dropout(dropout)
        self.cell = nn.LSTMCell(12, 5)
        self.table = nn.Embedding(7, 5)
        self.scale = nn.Parameter(torch.ones(6, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.norm(self.first(images)) * self.scale, inplace=True)
        strided = self.norm(self.second(features) + F.avg_pool2d(features, 3, 2, 1))
        both = torch.cat([strided, F.max_pool2d(features, 3, 2, 1)], dim=1)
        steps = both.flatten(2).transpose(1, 2)
        states = self.mixer(steps[..., :6]).unflatten(2, (2, 3)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(states, states, states, is_causal=True)
        steps = self.dropout(torch.cat([steps[..., 6:], attended.transpose(1, 2).flatten(2)], dim=2))
        hidden, cell = self.cell(steps[:, 0])
        hidden, cell = self.cell(steps[:, -1], (hidden, cell))
        return F.linear(torch.tanh(hidden + cell), self.table.weight) + self.table(images.new_ones(1).long()).sum()


def mixed(dropout: float = 0.0) -> Task:
    """Something of everything."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(5, 2, 7, 6, generator=generator)
    batch = images, torch.randint(7, (5,), generator=generator)
    return task("mixed", Mixed(dropout), batch, F.cross_entropy, optimizers("mixed")["SGD"])
