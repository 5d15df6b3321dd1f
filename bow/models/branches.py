"""What Inception networks are made of: normalised convolutions, and branches of them side by side."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bow.errors import DataError, SettingError

_EPSILON = 0.001


class ConvNorm(nn.Module):
    """A convolution without bias, batch norm and ReLU.

    Args:
        channels_in: channels of the input.
        channels_out: channels of the output.
        kernel: height and width of the filters, in pixels; one number for both.
        stride: of the filters, in pixels.
        padding: pixels of zeros on each side; one number for height and width.

    References:
        Ioffe, Szegedy: Batch normalization, 2015.
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, stride=stride, padding=padding, bias=False)
        self.norm = nn.BatchNorm2d(channels_out, eps=_EPSILON)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """The output `[batch, channels_out, height', width']` of images `[batch, channels_in, height, width]`."""
        return F.relu(self.norm(self.conv(images)))


class Branches(nn.ModuleList):
    """Modules that all see the same input, and whose outputs are stacked channel upon channel.

    No branch waits for another: they are the parallelism that an Inception network offers to a scheduler.

    Example:
        >>> branches = Branches([ConvNorm(3, 4, 1), nn.MaxPool2d(3, stride=1, padding=1)])
        >>> branches(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 7, 8, 8])
    """

    def forward(self, images: Tensor) -> Tensor:
        """The outputs of all branches, in their order, concatenated along the channels."""
        return torch.cat([branch(images) for branch in self], dim=1)


def scaled(filters: int, width: float) -> int:
    """The filters of a layer in a network that is `width` times as wide; at least one.

    Raises:
        SettingError: the width is not positive.

    Example:
        >>> scaled(64, 1), scaled(64, 0.25), scaled(64, 0.001)
        (64, 16, 1)
    """
    if not width > 0:
        raise SettingError(f"width must be more than 0, got {width}; 1 is the published network")
    return max(1, round(filters * width))


def check_image_size(images: Tensor, smallest: int, network: str) -> None:
    """Refuse images of which pooling would leave nothing.

    Raises:
        DataError: height or width is less than `smallest` pixels.
    """
    height, width = images.shape[-2:]
    if min(height, width) < smallest:
        raise DataError(
            f"{network} needs images of at least {smallest}x{smallest} pixels, got {height}x{width}; enlarge the images"
        )
