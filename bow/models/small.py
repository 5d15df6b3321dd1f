"""Logistic regression, a multilayer perceptron, and LeNet."""

import itertools
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import SettingError


class LogisticRegression(nn.Module):
    """One linear layer over the flattened input."""

    def __init__(self, in_features: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits `[batch, classes]` of inputs `[batch, ...]`."""
        logits: Tensor = self.linear(inputs.flatten(1))
        return logits


class MLP(nn.Module):
    """Fully connected layers with ReLU between them, over the flattened input."""

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


_FULL_SIZE = 28
_SMALLEST_SIZE = 4


class LeNet(nn.Module):
    """LeNet as Caffe ships it and CROSSBOW trains it: 20 and 50 filters of 5x5, 500 hidden units.

    Two convolutions, each followed by max-pooling, then two linear layers with a ReLU between them. Images smaller than
    28x28 are padded by two pixels before each convolution, so that 8x8 digits are large enough.

    References:
        LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998.
    """

    def __init__(self, classes: int = 10, channels: int = 1, size: int = _FULL_SIZE) -> None:
        super().__init__()
        padding = 0 if size >= _FULL_SIZE else 2
        shrinks_by = 4 - 2 * padding
        pooled = ((size - shrinks_by) // 2 - shrinks_by) // 2
        if pooled < 1:
            raise SettingError(f"size must be at least {_SMALLEST_SIZE} pixels, got {size}; enlarge the images")
        self.conv1 = nn.Conv2d(channels, 20, kernel_size=5, padding=padding)
        self.conv2 = nn.Conv2d(20, 50, kernel_size=5, padding=padding)
        self.hidden = nn.Linear(50 * pooled * pooled, 500)
        self.output = nn.Linear(500, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, size, size]`."""
        features = F.max_pool2d(self.conv1(images), 2)
        features = F.max_pool2d(self.conv2(features), 2)
        logits: Tensor = self.output(F.relu(self.hidden(features.flatten(1))))
        return logits
