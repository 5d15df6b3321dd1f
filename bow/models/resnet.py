"""Residual networks for small images."""

import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import SettingError


class ResNet(nn.Module):
    """The CIFAR ResNet of depth 6n + 2: three stages of n blocks with batch norm.

    The stages are `width`, `2 * width` and `4 * width` channels wide, and the last two halve the image.

    Where the shape changes the shortcut is the paper's option A, which has no parameters: every second
    pixel, and zeros for the new channels.

    Args:
        depth: layers with weights: 8, 14, 20, 26, 32, ...
        classes: number of classes.
        channels: channels of the images.
        width: channels of the first stage.

    Raises:
        SettingError: the depth is not 6n + 2.

    References:
        He, Zhang, Ren, Sun: Deep residual learning for image recognition, 2016, section 4.2.
    """

    def __init__(self, depth: int = 32, classes: int = 10, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if blocks < 1 or rest:
            raise SettingError(f"depth must be 6n + 2, such as 8, 20 or 32, got {depth}")
        self.conv = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            _stage(width, width, blocks, stride=1),
            _stage(width, 2 * width, blocks, stride=2),
            _stage(2 * width, 4 * width, blocks, stride=2),
        )
        self.output = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, height, width]`."""
        features = self.stages(F.relu(self.norm(self.conv(images))))
        logits: Tensor = self.output(features.mean(dim=(2, 3)))
        return logits


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, and a shortcut around them.

    Args:
        channels_in: channels of the input.
        channels_out: channels of the output, at least as many.
        stride: 2 halves height and width.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self._stride = stride
        self._new_channels = channels_out - channels_in

    def forward(self, inputs: Tensor) -> Tensor:
        """The output `[batch, channels_out, height / stride, width / stride]`."""
        features = F.relu(self.norm1(self.conv1(inputs)))
        return F.relu(self.norm2(self.conv2(features)) + self._shortcut(inputs))

    def _shortcut(self, inputs: Tensor) -> Tensor:
        if self._new_channels == 0:
            return inputs
        half = self._new_channels // 2
        strided = inputs[:, :, :: self._stride, :: self._stride]
        return F.pad(strided, (0, 0, 0, 0, half, self._new_channels - half))


def _stage(channels_in: int, channels_out: int, blocks: int, stride: int) -> nn.Sequential:
    first = ResidualBlock(channels_in, channels_out, stride)
    return nn.Sequential(first, *(ResidualBlock(channels_out, channels_out, 1) for _ in range(blocks - 1)))
