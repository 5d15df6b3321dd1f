"""Convolutional networks: AlexNet, GoogLeNet, Inception-v3, PathNet."""

import functools
from collections.abc import Iterator
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import DataError, SettingError

_EPSILON = 0.001
Kernel: TypeAlias = int | tuple[int, int]  # height and width in pixels, or one number for both


class ConvNorm(nn.Module):
    """A convolution without bias, batch norm and ReLU."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel: Kernel, stride: int = 1, padding: Kernel = 0
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, stride=stride, padding=padding, bias=False)
        self.norm = nn.BatchNorm2d(channels_out, eps=_EPSILON)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """The output `[batch, channels_out, height', width']` of images `[batch, channels_in, height, width]`."""
        return F.relu(self.norm(self.conv(images)))


class Branches(nn.ModuleList):
    """Modules with the same input, whose outputs are concatenated along the channels.

    Branches are independent: they are the parallelism that an Inception network offers to a scheduler.
    """

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self], dim=1)


def scaled(filters: int, width: float) -> int:
    """Scale a layer's number of filters by the network's width; at least one."""
    if not width > 0:
        raise SettingError(f"width must be more than 0, got {width}; 1 is the published network")
    return max(1, round(filters * width))


def check_image_size(images: Tensor, smallest: int, network: str) -> None:
    height, width = images.shape[-2:]
    if min(height, width) < smallest:
        raise DataError(
            f"{network} needs images of at least {smallest}x{smallest} pixels, got {height}x{width}; enlarge the images"
        )


_ALEXNET_SMALLEST = 63
_POOLED = 6


class AlexNet(nn.Module):
    """Five convolutions and three linear layers, in one tower.

    The one-tower form of "One weird trick", as in torchvision: without the split over two devices and without local
    response normalisation. Adaptive pooling to 6x6 pixels before the linear layers accepts images of at least 63x63
    pixels. `width` multiplies filters and hidden units: 1 is the published network, which has a dropout of 0.5.

    References:
        Krizhevsky, Sutskever, Hinton: ImageNet classification with deep convolutional neural networks, 2012.
        Krizhevsky: One weird trick for parallelizing convolutional neural networks, 2014.
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 0.125, dropout: float = 0.0) -> None:
        super().__init__()
        first, second, third, fourth = (scaled(filters, width) for filters in (64, 192, 384, 256))
        hidden = scaled(4096, width)
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, first, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2)),
            *(nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2)),
            *(nn.Conv2d(second, third, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(third, fourth, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(fourth, fourth, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2)),
        )
        self.classifier = nn.Sequential(
            *(nn.Dropout(dropout), nn.Linear(fourth * _POOLED * _POOLED, hidden), nn.ReLU()),
            *(nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU()),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, height, width]`."""
        check_image_size(images, _ALEXNET_SMALLEST, "AlexNet")
        features = F.adaptive_avg_pool2d(self.features(images), _POOLED)
        logits: Tensor = self.classifier(features.flatten(1))
        return logits


_GOOGLENET_SMALLEST = 15

# Filters of each module's convolutions: 1x1; 1x1 before 3x3; 3x3; 1x1 before "5x5"; "5x5"; 1x1 after pooling.
_STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


class GoogLeNet(nn.Module):
    """Nine Inception modules in three stages.

    Each module has four branches: a 1x1 convolution; two with a 1x1 before a wider one; and max-pooling before a 1x1.
    This is TensorFlow's version (`inception_v1`), which Tang et al. train: batch norm after every convolution instead
    of local response normalisation, 3x3 filters instead of the paper's 5x5, and no auxiliary classifiers. Images have
    at least 15x15 pixels; `width` multiplies filters, and the published dropout is 0.4.

    References:
        Szegedy et al.: Going deeper with convolutions, 2015.
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 0.25, dropout: float = 0.0) -> None:
        super().__init__()
        first, second = scaled(64, width), scaled(192, width)
        self.stem = nn.Sequential(
            ConvNorm(channels, first, 7, stride=2, padding=3),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            ConvNorm(first, first, 1),
            ConvNorm(first, second, 3, padding=1),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
        )
        self.modules3 = nn.Sequential(*_modules(0, width))
        self.pool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.modules4 = nn.Sequential(*_modules(1, width))
        self.pool4 = nn.MaxPool2d(2, stride=2, ceil_mode=True)
        self.modules5 = nn.Sequential(*_modules(2, width))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(_channels_out(_STAGES[-1][-1], width), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, height, width]`."""
        check_image_size(images, _GOOGLENET_SMALLEST, "GoogLeNet")
        features = self.pool3(self.modules3(self.stem(images)))
        features = self.modules5(self.pool4(self.modules4(features)))
        logits: Tensor = self.output(self.dropout(features.mean(dim=(2, 3))))
        return logits


def _modules(stage: int, width: float) -> Iterator[Branches]:
    channels = scaled(192, width) if stage == 0 else _channels_out(_STAGES[stage - 1][-1], width)
    for filters in _STAGES[stage]:
        yield _inception(channels, filters, width)
        channels = _channels_out(filters, width)


def _inception(channels: int, filters: tuple[int, ...], width: float) -> Branches:
    one, before_three, three, before_five, five, after_pool = (scaled(count, width) for count in filters)
    return Branches(
        [
            ConvNorm(channels, one, 1),
            nn.Sequential(ConvNorm(channels, before_three, 1), ConvNorm(before_three, three, 3, padding=1)),
            nn.Sequential(ConvNorm(channels, before_five, 1), ConvNorm(before_five, five, 3, padding=1)),
            nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), ConvNorm(channels, after_pool, 1)),
        ]
    )


def _channels_out(filters: tuple[int, ...], width: float) -> int:
    one, _, three, _, five, after_pool = filters
    return sum(scaled(count, width) for count in (one, three, five, after_pool))


_INCEPTION_SMALLEST = 75


class InceptionV3(nn.Module):
    """Inception-v3: large filters factorised into several small or flat ones, in eleven modules of parallel branches.

    The network of TensorFlow and torchvision, without the auxiliary classifier, which is not used for inference. Images
    have at least 75x75 pixels; `width` multiplies filters, and the published dropout is 0.2.

    References:
        Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception architecture for computer vision, 2016.
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 0.125, dropout: float = 0.0) -> None:
        super().__init__()
        make = _InceptionBuilder(width)
        self.stem = nn.Sequential(
            ConvNorm(channels, make.filters(32), 3, stride=2),
            ConvNorm(make.filters(32), make.filters(32), 3),
            make.chain((32,), (64, 3)),
            nn.MaxPool2d(3, stride=2),
            make.chain((64,), (80, 1)),
            ConvNorm(make.filters(80), make.filters(192), 3),
            nn.MaxPool2d(3, stride=2),
        )
        self.modules35 = nn.Sequential(
            make.square((192,), 32), make.square(_SQUARE_32, 64), make.square(_SQUARE_64, 64)
        )
        self.reduction17 = make.reduction17(_SQUARE_64)
        inner = zip((_REDUCED_17, _FACTORISED, _FACTORISED, _FACTORISED), (128, 160, 160, 192), strict=True)
        self.modules17 = nn.Sequential(*(make.factorised(*each) for each in inner))
        self.reduction8 = make.reduction8(_FACTORISED)
        self.modules8 = nn.Sequential(make.expanded(_REDUCED_8), make.expanded(_EXPANDED))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(make.channels(_EXPANDED), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, height, width]`."""
        check_image_size(images, _INCEPTION_SMALLEST, "Inception-v3")
        features = self.modules35(self.stem(images))
        features = self.modules17(self.reduction17(features))
        features = self.modules8(self.reduction8(features))
        logits: Tensor = self.output(self.dropout(features.mean(dim=(2, 3))))
        return logits


# The published filters of a module's concatenated outputs. Each part is scaled, and rounded, separately.
_SQUARE_32 = (64, 64, 96, 32)
_SQUARE_64 = (64, 64, 96, 64)
_REDUCED_17 = (384, 96, *_SQUARE_64)
_FACTORISED = (192, 192, 192, 192)
_REDUCED_8 = (320, 192, *_FACTORISED)
_EXPANDED = (320, 384, 384, 384, 384, 192)


class _InceptionBuilder:
    # Makes modules with `width` times the published numbers of filters, which are the arguments; `before` are those of
    # the parts of the concatenated input.

    def __init__(self, width: float) -> None:
        self._width = width

    def filters(self, published: int) -> int:
        return scaled(published, self._width)

    def channels(self, before: tuple[int, ...]) -> int:
        return sum(map(self.filters, before))

    def chain(self, before: tuple[int, ...], *convs: tuple[int, Kernel] | tuple[int, Kernel, int]) -> nn.Module:
        """Chain convolutions of (filters, kernel), which keep the image size, or of (filters, kernel, stride)."""
        layers = []
        for filters, kernel, *stride in convs:
            high, wide = kernel if isinstance(kernel, tuple) else (kernel, kernel)
            sliding = (stride[0], 0) if stride else (1, (high // 2, wide // 2))
            layers.append(ConvNorm(self.channels(before), self.filters(filters), kernel, *sliding))
            before = (filters,)
        return layers[0] if len(layers) == 1 else nn.Sequential(*layers)

    def square(self, before: tuple[int, ...], pooled: int) -> Branches:
        """5x5 filters, next to 5x5 filters factorised into two of 3x3 (figure 5)."""
        convs = (((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)))
        return Branches([*(self.chain(before, *each) for each in convs), self._pooled(before, pooled)])

    def factorised(self, before: tuple[int, ...], inner: int) -> Branches:
        """7x7 filters factorised into 1x7 and 7x1, once and twice (figure 6)."""
        wide, high = (inner, (1, 7)), (inner, (7, 1))
        once = self.chain(before, (192, 1)), self.chain(before, (inner, 1), wide, (192, (7, 1)))
        return Branches(
            [*once, self.chain(before, (inner, 1), high, wide, high, (192, (1, 7))), self._pooled(before, 192)]
        )

    def expanded(self, before: tuple[int, ...]) -> Branches:
        """3x3 filters factorised into parallel 1x3 and 3x1 (figure 7)."""
        once = self.chain(before, (320, 1)), nn.Sequential(self.chain(before, (384, 1)), self._crossed())
        after = nn.Sequential(
            *(self.chain(*each) for each in ((before, (448, 1)), ((448,), (384, 3)))), self._crossed()
        )
        return Branches([*once, after, self._pooled(before, 192)])

    def reduction17(self, before: tuple[int, ...]) -> Branches:
        """Halve height and width: strided convolutions parallel to pooling (figure 10)."""
        convs = self.chain(before, (384, 3, 2)), self.chain(before, (64, 1), (96, 3), (96, 3, 2))
        return Branches([*convs, nn.MaxPool2d(3, stride=2)])

    def reduction8(self, before: tuple[int, ...]) -> Branches:
        """Halve height and width, with a factorised 7x7 in one branch."""
        square = self.chain(before, (192, 1), (320, 3, 2))
        factorised = self.chain(before, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2))
        return Branches([square, factorised, nn.MaxPool2d(3, stride=2)])

    def _crossed(self) -> Branches:
        return Branches([self.chain((384,), (384, (1, 3))), self.chain((384,), (384, (3, 1)))])

    def _pooled(self, before: tuple[int, ...], filters: int) -> nn.Sequential:
        return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), self.chain(before, (filters, 1)))


class PathNet(nn.Module):
    """Layers of small parallel modules, whose outputs are summed.

    The network that one path through a PathNet activates: each layer has `modules` active modules, each a 3x3
    convolution, ReLU and 2x2 max-pooling, and the sum of their outputs is the input of the next layer. The last layer
    is linear. The evolution that selects the path runs outside the training step and is not included.

    References:
        Fernando et al.: PathNet: Evolution channels gradient descent in super neural networks, 2017.
    """

    def __init__(
        self, classes: int = 10, channels: int = 3, size: int = 32, filters: int = 16, layers: int = 3, modules: int = 6
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
        for layer in self.layers:
            images = layer(images)
        logits: Tensor = self.output(images.flatten(1))
        return logits


class PathNetLayer(nn.Module):
    """Active modules with the same input, and the sum of their outputs."""

    def __init__(self, channels_in: int, filters: int, modules: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(channels_in, filters, 3, padding=1) for _ in range(modules))

    def forward(self, images: Tensor) -> Tensor:
        """The output `[batch, filters, height / 2, width / 2]` of images `[batch, channels_in, height, width]`."""
        return functools.reduce(torch.add, (F.max_pool2d(F.relu(conv(images)), 2) for conv in self.convs))
