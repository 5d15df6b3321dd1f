"""GoogLeNet."""

from collections.abc import Iterator

from torch import Tensor, nn

from bow.models.branches import Branches, ConvNorm, check_image_size, scaled

SMALLEST_IMAGE = 15

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
    """Nine Inception modules in three stages: the first network that went deeper by going parallel.

    Each module has four branches: a 1x1 convolution; two of a 1x1 before a wider one; and max-pooling before a 1x1.
    This is the network as TensorFlow ships it (`inception_v1`), which Tang et al. train: batch norm behind every
    convolution in place of local response normalisation, 3x3 filters where the paper has 5x5 ones, and no auxiliary
    classifiers.

    Args:
        classes: number of classes.
        channels: channels of the images.
        width: multiplies the filters of every convolution; 1 is the published network.
        dropout: probability with which a feature is dropped before the last layer; 0.4 in the paper.

    Raises:
        SettingError: the width is not positive.

    References:
        Szegedy et al.: Going deeper with convolutions, 2015.
        Tang et al.: Scheduling computation graphs of deep learning models on manycore CPUs, 2018, table 1c.
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
        """Logits `[batch, classes]` of images `[batch, channels, height, width]`.

        Raises:
            DataError: the images are smaller than 15x15 pixels.
        """
        check_image_size(images, SMALLEST_IMAGE, "GoogLeNet")
        features = self.pool3(self.modules3(self.stem(images)))
        features = self.modules5(self.pool4(self.modules4(features)))
        logits: Tensor = self.output(self.dropout(features.mean(dim=(2, 3))))
        return logits


def _modules(stage: int, width: float) -> Iterator[Branches]:
    """The modules of a stage; their input is the output of the last module before."""
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
