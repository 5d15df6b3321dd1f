"""Data sets without a download: scikit-learn's digits, Python's help texts, synthetic images."""

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bow.data.splits import DataSplits, SyntheticSamples, standardize
from bow.errors import DataError, SettingError
from bow.values import number, whole


def digits(limit: int | None = None) -> DataSplits:
    """Load the 1,797 handwritten digits of 8x8 pixels that scikit-learn ships: real data without a download.

    Every fifth digit of each class is held out, which leaves 1,442 for training and 355 for validation.

    Args:
        limit: use only the first `limit` training samples.

    Raises:
        SettingError: the limit is below 1.

    References:
        Alpaydin, Kaynak: Optical recognition of handwritten digits, UCI machine learning repository, 1998.
    """
    images, labels = _digits()
    rank_in_class = torch.nn.functional.one_hot(labels).cumsum(0).gather(1, labels[:, None]).squeeze(1) - 1
    held_out = rank_in_class % 5 == 4
    train, validation = standardize(images[~held_out], images[held_out])
    splits = DataSplits((train, labels[~held_out]), (validation, labels[held_out]), 10, "digits")
    return splits.limited(limit)


_DIGITS = "datasets/data/digits.csv.gz"  # in scikit-learn's folder: 64 pixels and a label per line


@functools.cache
def _digits() -> tuple[Tensor, Tensor]:
    # From the file, if found: scikit-learn takes a second to import.
    spec = importlib.util.find_spec("sklearn")
    file = Path((spec and spec.origin) or "").parent / _DIGITS
    if file.exists():
        rows = torch.as_tensor(np.loadtxt(file, delimiter=","))
    else:
        from sklearn.datasets import load_digits

        rows = torch.as_tensor(np.column_stack(load_digits(return_X_y=True)))
    return rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].long()


_VALIDATION_SHARE = 0.1


def text(sequence_length: int = 32, limit: int | None = None) -> DataSplits:
    """Load the Python language's help texts, almost half a million characters that ship with Python.

    Tokens are characters; the text is split into sequences without overlap, and the target of each character is the
    next one. The last tenth of the text is held out. The text differs slightly between versions of Python.

    Args:
        sequence_length: characters in a sequence.
        limit: use only the first `limit` training sequences.

    Returns:
        Tokens `[sequences, sequence_length]` and targets of the same shape, int64.

    Raises:
        SettingError: the sequences are shorter than 1 character or longer than the held-out text, or the
            limit is below 1.
        DataError: this Python lacks the text.
    """
    codes = torch.frombuffer(bytearray(_read_text(), "utf-32-le"), dtype=torch.int32)
    vocabulary, tokens = codes.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    num_validation = int(len(tokens) * _VALIDATION_SHARE)
    if not 1 <= sequence_length < num_validation:
        raise SettingError(f"sequence_length must be from 1 to {num_validation - 1} characters, got {sequence_length}")
    train = _sequences(tokens[:-num_validation], sequence_length)
    validation = _sequences(tokens[-num_validation:], sequence_length)
    return DataSplits(train, validation, len(vocabulary), "text").limited(limit)


def _read_text() -> str:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataError(
            "this Python comes without its help texts (pydoc_data); install the complete standard library"
        ) from error
    return "\n".join(topics[name] for name in sorted(topics))


def _sequences(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    count = (len(tokens) - 1) // length
    return tokens[: count * length].view(count, length), tokens[1 : count * length + 1].view(count, length)


_COARSE = 4


def synthetic_images(
    samples: int = 5000,
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    contrast: float = 0.15,
    seed: int = 0,
    limit: int | None = None,
) -> DataSplits:
    """Make images with one smooth prototype per class plus noise: learnable images of any shape, without a download.

    An image of class y is `contrast * prototype[y] + noise`, with standard normal noise in each pixel. A prototype is a
    4x4 standard normal picture, enlarged. Validation has `samples // 5` further images.

    Args:
        samples: training samples, at least 1.
        shape: channels, height and width.
        classes: number of classes, drawn with equal probability.
        contrast: scale of the prototypes relative to the noise; lower is harder.
        seed: seed of the images.
        limit: use only the first `limit` training samples.

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
