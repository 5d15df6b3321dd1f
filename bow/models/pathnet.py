"""PathNet."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import SettingError


class PathNet(nn.Module):
    """Layers of small modules that run side by side, and whose outputs are summed.

    The network that one path through a PathNet activates: each layer has `modules` active modules, each a 3x3
    convolution, ReLU and 2x2 max-pooling, and the sum of their outputs is the input of the next layer. The last layer
    is linear. What chooses the path is an evolution around the training, and no part of a training step.

    Args:
        classes: number of classes.
        channels: channels of the images.
        size: height and width of the images, in pixels.
        filters: filters of each module.
        layers: number of layers; each halves the images.
        modules: active modules of each layer.

    Raises:
        SettingError: pooling leaves nothing of the images, or there is no layer or no module.

    References:
        Fernando et al.: PathNet: Evolution channels gradient descent in super neural networks, 2017.
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, table 1b.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        size: int = 32,
        filters: int = 16,
        layers: int = 3,
        modules: int = 6,
    ) -> None:
        super().__init__()
        if layers < 1 or modules < 1:
            raise SettingError(f"layers and modules must be at least 1, got layers={layers}, modules={modules}")
        pooled = size // 2**layers
        if pooled < 1:
            raise SettingError(
                f"size must be at least {2**layers} pixels for layers={layers}, got {size}; enlarge the images"
            )
        widths = [channels] + [filters] * (layers - 1)
        self.layers = nn.ModuleList(PathNetLayer(width, filters, modules) for width in widths)
        self.output = nn.Linear(filters * pooled * pooled, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, size, size]`."""
        features = images
        for layer in self.layers:
            features = layer(features)
        logits: Tensor = self.output(features.flatten(1))
        return logits


class PathNetLayer(nn.Module):
    """Active modules that see the same input, and the sum of their outputs.

    Args:
        channels_in: channels of the input.
        filters: channels of the output.
        modules: active modules.
    """

    def __init__(self, channels_in: int, filters: int, modules: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(channels_in, filters, 3, padding=1) for _ in range(modules))

    def forward(self, images: Tensor) -> Tensor:
        """The output `[batch, filters, height / 2, width / 2]` of images `[batch, channels_in, height, width]`."""
        outputs = [F.max_pool2d(F.relu(conv(images)), 2) for conv in self.convs]
        return functools.reduce(torch.add, outputs)
