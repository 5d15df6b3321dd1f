"""MNIST and Fashion-MNIST from IDX files, CIFAR-10 from its binary files."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from bow.data.splits import DataSplits, standardize
from bow.errors import DataError
from bow.values import given_path

_UNSIGNED_BYTE = 0x08


def read_idx(path: str | Path, num_dimensions: int) -> UInt8[Tensor, "..."]:
    """Read an IDX file of unsigned bytes, plain or compressed with gzip (a name that ends in .gz)."""
    path = given_path("path", path)
    content = _read(path)
    # Two zero bytes, the element type, the number of dimensions; then each as a big-endian integer, and the elements.
    magic = bytes((0, 0, _UNSIGNED_BYTE, num_dimensions))
    if content[:4] != magic:
        raise DataError(
            f"{path} is not an IDX file of bytes in {num_dimensions} dimensions: it starts with "
            f"0x{content[:4].hex()} instead of 0x{magic.hex()}; get the file again"
        )
    header = 4 + 4 * num_dimensions
    if len(content) < header:
        raise DataError(f"{path} ends within its header, after {len(content)} bytes; get the file again")
    shape = struct.unpack(f">{num_dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(
            f"{path} promises {' x '.join(map(str, shape))} bytes and has {len(content) - header}; get the file again"
        )
    if math.prod(shape) == 0:
        raise DataError(f"{path} holds no elements; get the file again")
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(shape)


def _read(path: Path) -> bytearray:
    # A bytearray because torch warns about tensors on memory that must not be written.
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return bytearray(file.read())
        return bytearray(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); get the file again") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error.strerror}); check the path and permissions")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # nobody may look into its folder
        raise _unreadable(path, error) from error


# Where Debian's package dataset-fashion-mnist puts its files
FASHION_MNIST_ROOT = Path("/usr/share/datasets/fashion-mnist")

_CLASSES = 10
_SIZE = 28


def mnist(root: str | Path | None = None, limit: int | None = None) -> DataSplits:
    """MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels.

    Args:
        root: directory with the four IDX files, each plain or with .gz at the end.
        limit: use the first so many training samples only.

    Raises:
        DataError: a file is missing or damaged.
        SettingError: the limit is below 1.

    References:
        LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998.
    """
    remedy = (
        "download the four IDX files from https://ossci-datasets.s3.amazonaws.com/mnist/ "
        "and set root to their directory"
    )
    if root is None:
        raise DataError(f"MNIST needs a directory, got root=None; {remedy}")
    return _load("mnist", given_path("root", root), remedy).limited(limit)


def fashion_mnist(root: str | Path | None = None, limit: int | None = None) -> DataSplits:
    """Fashion-MNIST: 60,000 + 10,000 pictures of clothes of 28x28 pixels.

    Args:
        root: directory with the four IDX files, each plain or with .gz at the end; by default where Debian's
            package dataset-fashion-mnist puts them.
        limit: use the first so many training samples only.

    Raises:
        DataError: a file is missing or damaged.
        SettingError: the limit is below 1.

    References:
        Xiao, Rasul, Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine learning
        algorithms, 2017.
    """
    remedy = (
        "install Debian's package dataset-fashion-mnist, or set root to a directory with the four IDX files "
        "of https://github.com/zalandoresearch/fashion-mnist"
    )
    directory = FASHION_MNIST_ROOT if root is None else given_path("root", root)
    return _load("fashion_mnist", directory, remedy).limited(limit)


def _load(name: str, root: Path, remedy: str) -> DataSplits:
    train_images, train_labels = _read_part(root, "train", remedy)
    images, labels = _read_part(root, "t10k", remedy)
    train_images, images = standardize(train_images, images)
    return DataSplits((train_images, train_labels), (images, labels), _CLASSES, name)


def _read_part(root: Path, part: str, remedy: str) -> tuple[Tensor, Tensor]:
    images_path = _find(root, f"{part}-images-idx3-ubyte", remedy)
    labels_path = _find(root, f"{part}-labels-idx1-ubyte", remedy)
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1).long()
    if images.shape[1:] != (_SIZE, _SIZE):
        height, width = images.shape[1:]
        raise DataError(
            f"{images_path} holds images of {height}x{width} pixels instead of {_SIZE}x{_SIZE}; get the file again"
        )
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} holds {len(images)} images and {labels_path.name} {len(labels)} labels; "
            "get both files again"
        )
    if labels.max() >= _CLASSES:
        raise DataError(f"{labels_path} holds the label {labels.max()} of {_CLASSES} classes; get the file again")
    return images.unsqueeze(1), labels


def _find(root: Path, name: str, remedy: str) -> Path:
    for path in (root / name, root / f"{name}.gz"):
        if _is_there(path):
            return path
    raise DataError(f"{root / name} is missing, plain and with .gz; {remedy}")


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
    if _is_there(directory / "cifar-10-batches-bin"):
        directory = directory / "cifar-10-batches-bin"
    parts = [_read_records(directory / f"data_batch_{number}.bin") for number in range(1, 6)]
    train_images, train_labels = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    images, labels = _read_records(directory / "test_batch.bin")
    train_images, images = standardize(train_images, images)
    return DataSplits((train_images, train_labels), (images, labels), _CLASSES, "cifar10").limited(limit)


def _read_records(path: Path) -> tuple[Tensor, Tensor]:
    """Images and labels: each record is a label byte, then 1,024 bytes of red, green and blue each."""
    if not _is_there(path):
        raise DataError(f"{path} is missing; {_REMEDY}")
    content = _read(path)
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
