"""Inception-v3."""

from torch import Tensor, nn

from bow.models.branches import Branches, ConvNorm, check_image_size, scaled

SMALLEST_IMAGE = 75


class InceptionV3(nn.Module):
    """Inception-v3: large filters written as several small or flat ones, in eleven modules of parallel branches.

    The network of TensorFlow and torchvision, without the auxiliary classifier, which is no part of the model
    that is evaluated.

    Args:
        classes: number of classes.
        channels: channels of the images.
        width: multiplies the filters of every convolution; 1 is the published network.
        dropout: probability with which a feature is dropped before the last layer; 0.2 in the paper.

    Raises:
        SettingError: the width is not positive.

    References:
        Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception architecture for computer vision, 2016.
        Liu et al.: Runtime concurrency control and operation scheduling for high performance neural network
        training, 2019, section IV.
    """

    def __init__(self, classes: int = 10, channels: int = 3, width: float = 0.125, dropout: float = 0.0) -> None:
        super().__init__()
        make = _Builder(width)
        self.stem = nn.Sequential(
            ConvNorm(channels, make.filters(32), 3, stride=2),
            make.conv(32, 32, 3),
            make.conv(32, 64, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            make.conv(64, 80, 1),
            make.conv(80, 192, 3),
            nn.MaxPool2d(3, stride=2),
        )
        self.modules35 = nn.Sequential(
            make.square((192,), 32), make.square(_SQUARE_32, 64), make.square(_SQUARE_64, 64)
        )
        self.reduction17 = make.reduction17(_SQUARE_64)
        self.modules17 = nn.Sequential(
            make.factorised(_REDUCED_17, 128),
            make.factorised(_FACTORISED, 160),
            make.factorised(_FACTORISED, 160),
            make.factorised(_FACTORISED, 192),
        )
        self.reduction8 = make.reduction8(_FACTORISED)
        self.modules8 = nn.Sequential(make.expanded(_REDUCED_8), make.expanded(_EXPANDED))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(make.channels(_EXPANDED), classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, channels, height, width]`.

        Raises:
            DataError: the images are smaller than 75x75 pixels.
        """
        check_image_size(images, SMALLEST_IMAGE, "Inception-v3")
        features = self.modules35(self.stem(images))
        features = self.modules17(self.reduction17(features))
        features = self.modules8(self.reduction8(features))
        logits: Tensor = self.output(self.dropout(features.mean(dim=(2, 3))))
        return logits


# The published filters of what a module concatenates. Each part is scaled, and rounded, on its own.
_SQUARE_32 = (64, 64, 96, 32)
_SQUARE_64 = (64, 64, 96, 64)
_REDUCED_17 = (384, 96, *_SQUARE_64)
_FACTORISED = (192, 192, 192, 192)
_REDUCED_8 = (320, 192, *_FACTORISED)
_EXPANDED = (320, 384, 384, 384, 384, 192)


class _Builder:
    """Makes modules whose filters are `width` times the published ones.

    Its arguments are published numbers throughout; `before` lists the filters that the input is concatenated of.
    """

    def __init__(self, width: float) -> None:
        self._width = width

    def filters(self, published: int) -> int:
        return scaled(published, self._width)

    def channels(self, before: tuple[int, ...]) -> int:
        return sum(map(self.filters, before))

    def conv(
        self,
        before: int | tuple[int, ...],
        filters: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> ConvNorm:
        channels = self.channels(before if isinstance(before, tuple) else (before,))
        return ConvNorm(channels, self.filters(filters), kernel, stride, padding)

    def square(self, before: tuple[int, ...], pooled: int) -> Branches:
        """5x5 filters, and 5x5 ones written as two of 3x3 (figure 5)."""
        return Branches(
            [
                self.conv(before, 64, 1),
                nn.Sequential(self.conv(before, 48, 1), self.conv(48, 64, 5, padding=2)),
                nn.Sequential(
                    self.conv(before, 64, 1), self.conv(64, 96, 3, padding=1), self.conv(96, 96, 3, padding=1)
                ),
                self._pooled(before, pooled),
            ]
        )

    def factorised(self, before: tuple[int, ...], inner: int) -> Branches:
        """7x7 filters written as 1x7 and 7x1, once and twice (figure 6)."""
        return Branches(
            [
                self.conv(before, 192, 1),
                nn.Sequential(self.conv(before, inner, 1), self._wide(inner, inner), self._high(inner, 192)),
                nn.Sequential(
                    self.conv(before, inner, 1),
                    self._high(inner, inner),
                    self._wide(inner, inner),
                    self._high(inner, inner),
                    self._wide(inner, 192),
                ),
                self._pooled(before, 192),
            ]
        )

    def expanded(self, before: tuple[int, ...]) -> Branches:
        """3x3 filters written as 1x3 beside 3x1 (figure 7)."""
        return Branches(
            [
                self.conv(before, 320, 1),
                nn.Sequential(self.conv(before, 384, 1), self._crossed()),
                nn.Sequential(self.conv(before, 448, 1), self.conv(448, 384, 3, padding=1), self._crossed()),
                self._pooled(before, 192),
            ]
        )

    def reduction17(self, before: tuple[int, ...]) -> Branches:
        """Halves height and width: strided convolutions beside pooling (figure 10)."""
        return Branches(
            [
                self.conv(before, 384, 3, stride=2),
                nn.Sequential(
                    self.conv(before, 64, 1), self.conv(64, 96, 3, padding=1), self.conv(96, 96, 3, stride=2)
                ),
                nn.MaxPool2d(3, stride=2),
            ]
        )

    def reduction8(self, before: tuple[int, ...]) -> Branches:
        """Halves height and width, with a factorised 7x7 in one branch."""
        return Branches(
            [
                nn.Sequential(self.conv(before, 192, 1), self.conv(192, 320, 3, stride=2)),
                nn.Sequential(
                    self.conv(before, 192, 1),
                    self._wide(192, 192),
                    self._high(192, 192),
                    self.conv(192, 192, 3, stride=2),
                ),
                nn.MaxPool2d(3, stride=2),
            ]
        )

    def _wide(self, before: int, filters: int) -> ConvNorm:
        return self.conv(before, filters, (1, 7), padding=(0, 3))

    def _high(self, before: int, filters: int) -> ConvNorm:
        return self.conv(before, filters, (7, 1), padding=(3, 0))

    def _crossed(self) -> Branches:
        return Branches([self.conv(384, 384, (1, 3), padding=(0, 1)), self.conv(384, 384, (3, 1), padding=(1, 0))])

    def _pooled(self, before: tuple[int, ...], filters: int) -> nn.Sequential:
        return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), self.conv(before, filters, 1))
