"""Residual networks."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import SettingError


class ResNet(nn.Module):
    """The CIFAR ResNet of depth 6n + 2: three stages of n blocks with batch norm.

    The stages are `width`, `2 * width` and `4 * width` channels wide, and the last two halve the image.

    Where the shape changes, the shortcut is the paper's option A, which has no parameters: every second pixel, and
    zeros for the new channels.

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
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, height, width]`."""
        features = self.stages(F.relu(self.norm(self.conv(images))))
        logits: Tensor = self.output(features.mean(dim=(2, 3)))
        return logits


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, and a shortcut around them."""

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


class BottleneckResNet(nn.Module):
    """The deep ResNets of ImageNet: four stages of bottleneck blocks, 4 * `width` to 32 * `width` channels wide.

    As in torchvision ("version 1.5"): the first block of a stage has the stride in its 3x3 convolution, and a 1x1
    convolution as shortcut (option B).

    Args:
        depth: layers with weights: 50, 101 or 152.
        classes: number of classes.
        channels: channels of the images.
        width: channels of the first stage's 3x3 convolutions; 64 is the published network.
        stem: first layers: `"imagenet"`, a 7x7 convolution and max-pooling, which divide height and width by four; or
            `"cifar"`, a 3x3 convolution, which keeps the size of small images.

    Raises:
        SettingError: unknown depth or stem.

    References:
        He, Zhang, Ren, Sun: Deep residual learning for image recognition, 2016, table 1.
    """

    def __init__(
        self,
        depth: int = 50,
        classes: int = 10,
        channels: int = 3,
        width: int = 16,
        stem: Literal["cifar", "imagenet"] = "cifar",
    ) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise SettingError(f"depth must be 50, 101 or 152, got {depth}; ResNet has those of 6n + 2")
        self.stem = _stem(stem, channels, width)
        stages, channels_in = [], width
        for stage, blocks in enumerate(_BLOCKS[depth]):
            stages.append(_bottlenecks(channels_in, width * 2**stage, blocks, stride=1 if stage == 0 else 2))
            channels_in = BottleneckBlock.EXPANSION * width * 2**stage
        self.stages = nn.Sequential(*stages)
        self.output = nn.Linear(channels_in, classes)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, height, width]`."""
        features = self.stages(self.stem(images))
        logits: Tensor = self.output(features.mean(dim=(2, 3)))
        return logits


class BottleneckBlock(nn.Module):
    """A 1x1 convolution that narrows, a 3x3 one, a 1x1 one that widens, and a shortcut around them."""

    EXPANSION = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = self.EXPANSION * width
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels_out:
            projection = nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels_out))

    def forward(self, inputs: Tensor) -> Tensor:
        """The output `[batch, 4 * width, height / stride, width / stride]`."""
        features = F.relu(self.norm1(self.conv1(inputs)))
        features = F.relu(self.norm2(self.conv2(features)))
        return F.relu(self.norm3(self.conv3(features)) + self.shortcut(inputs))


_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def _stem(name: str, channels: int, width: int) -> nn.Sequential:
    if name == "imagenet":
        conv = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
    if name == "cifar":
        conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU())
    raise SettingError(f"stem must be cifar or imagenet, got {name!r}")


def _bottlenecks(channels_in: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = BottleneckBlock(channels_in, width, stride)
    channels_out = BottleneckBlock.EXPANSION * width
    return nn.Sequential(first, *(BottleneckBlock(channels_out, width, 1) for _ in range(blocks - 1)))


def _initialise(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
