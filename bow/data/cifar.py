"""CIFAR-10, from its binary files."""

from pathlib import Path

import torch
from torch import Tensor

from bow.data.splits import DataSplits, standardize
from bow.errors import DataError
from bow.values import given_path

_CLASSES = 10
_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
_REMEDY = (
    "unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz (the binary version) and set root to its directory"
)


def cifar10(root: str | Path | None = None, limit: int | None = None) -> DataSplits:
    """CIFAR-10: 50,000 + 10,000 colour photographs of 32x32 pixels.

    Args:
        root: directory with data_batch_1.bin to data_batch_5.bin and test_batch.bin, or the one above it.
        limit: use the first so many training samples only.

    Raises:
        DataError: a file is missing or damaged.
        SettingError: the limit is below 1.

    References:
        Krizhevsky: Learning multiple layers of features from tiny images, 2009.
    """
    if root is None:
        raise DataError(f"CIFAR-10 needs a directory, got root=None; {_REMEDY}")
    directory = given_path("root", root)
    if (directory / "cifar-10-batches-bin").is_dir():
        directory = directory / "cifar-10-batches-bin"
    parts = [_read_records(directory / f"data_batch_{number}.bin") for number in range(1, 6)]
    train_images, train_labels = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    images, labels = _read_records(directory / "test_batch.bin")
    train_images, images = standardize(train_images, images)
    return DataSplits((train_images, train_labels), (images, labels), _CLASSES, "cifar10").limited(limit)


def _read_records(path: Path) -> tuple[Tensor, Tensor]:
    """Images and labels: each record is a label byte, then 1,024 bytes of red, green and blue each."""
    if not path.is_file():
        raise DataError(f"{path} is missing; {_REMEDY}")
    # A bytearray because torch warns about tensors on memory that must not be written.
    content = bytearray(path.read_bytes())
    if not content or len(content) % _RECORD_BYTES:
        raise DataError(
            f"{path} has {len(content)} bytes, which is not a multiple of the {_RECORD_BYTES} of a record; "
            "get the file again"
        )
    records = torch.frombuffer(content, dtype=torch.uint8).view(-1, _RECORD_BYTES)
    labels = records[:, 0].long()
    if labels.max() >= _CLASSES:
        raise DataError(f"{path} holds the label {labels.max()} of {_CLASSES} classes; get the file again")
    return records[:, 1:].reshape(-1, *_SHAPE), labels
