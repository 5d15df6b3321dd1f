"""Images that are made up."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from bow.data.splits import DataSplits, SyntheticSamples
from bow.errors import SettingError
from bow.values import number, whole

_COARSE = 4


def synthetic_images(
    samples: int = 5000,
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    contrast: float = 0.15,
    seed: int = 0,
    limit: int | None = None,
) -> DataSplits:
    """Noise around one smooth picture per class: learnable images of any shape, without a download.

    An image of class y is `contrast * prototype[y] + noise`, the noise standard normal in each pixel. A
    prototype is a 4x4 standard normal picture, enlarged. One image in five more is made for validation.

    Args:
        samples: training samples, at least 1.
        shape: channels, height and width.
        classes: number of classes, drawn with equal probability.
        contrast: strength of the picture in the noise; lower is harder.
        seed: the same seed gives the same images.
        limit: use the first so many training samples only.

    Raises:
        SettingError: a count is below 1, or the shape is not three numbers.
    """
    for name, value in {"samples": samples, "classes": classes}.items():
        whole(name, value)
    number("contrast", contrast)
    if len(shape) != 3 or min(shape) < 1:
        raise SettingError(f"shape must be channels, height and width, got {list(shape)}")
    channels, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(classes, channels, _COARSE, _COARSE, generator=generator)
    prototypes = contrast * F.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)

    def draw(count: int) -> SyntheticSamples:
        labels = torch.randint(classes, (count,), generator=generator)
        noise = torch.randn(count, *shape, generator=generator)
        return SyntheticSamples(noise.add_(prototypes[labels]), labels)

    train, validation = draw(samples), draw(max(1, samples // 5))
    return DataSplits(train, validation, classes, "synthetic_images").limited(limit)
