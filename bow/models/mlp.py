"""Multilayer perceptron."""

import itertools
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Fully connected layers with ReLU between them, over the flattened input.

    Args:
        in_features: numbers in one sample, whatever its shape.
        classes: number of classes.
        hidden: units of each hidden layer.
    """

    def __init__(self, in_features: int, classes: int, hidden: Sequence[int] = (256,)) -> None:
        super().__init__()
        sizes = (in_features, *hidden)
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.output = nn.Linear(sizes[-1], classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits `[batch, classes]` of inputs `[batch, ...]`."""
        features = inputs.flatten(1)
        for layer in self.hidden:
            features = F.relu(layer(features))
        logits: Tensor = self.output(features)
        return logits
