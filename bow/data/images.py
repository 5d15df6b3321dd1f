"""MNIST and Fashion-MNIST from IDX files, CIFAR-10 from its binary or Python files."""

import gzip
import io
import math
import pickle
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import TensorDataset

from bow.data.splits import DataSplits, standardize
from bow.errors import DataError, reason
from bow.values import given_path

_UNSIGNED_BYTE = 0x08


def read_idx(path: str | Path, num_dimensions: int) -> UInt8[Tensor, "..."]:
    """Read an IDX file of unsigned bytes, plain or compressed with gzip (a name that ends in .gz)."""
    path = given_path("path", path)
    content = _read(path)
    # Format: two zero bytes, element type, number of dimensions; each dimension as a big-endian integer; the elements.
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
    # A bytearray, because torch warns about tensors on read-only memory.
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
    except OSError as error:  # no permission for its folder
        raise _unreadable(path, error) from error


# Location in Debian's package dataset-fashion-mnist.
FASHION_MNIST_ROOT = Path("/usr/share/datasets/fashion-mnist")

_CLASSES = 10
_SIZE = 28


def mnist(root: str | Path | None = None, limit: int | None = None) -> DataSplits:
    """MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels.

    Args:
        root: directory with the four IDX files, each plain or with the suffix .gz.
        limit: use only the first `limit` training samples.

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
        root: directory with the four IDX files, each plain or with the suffix .gz; default: the location in Debian's
            package dataset-fashion-mnist.
        limit: use only the first `limit` training samples.

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
    "unpack cifar-10-binary.tar.gz or cifar-10-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html and set "
    "root to its directory"
)
_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")


def cifar10(root: str | Path | None = None, limit: int | None = None, augment: bool = True) -> DataSplits:
    """CIFAR-10: 50,000 + 10,000 colour photographs of 32x32 pixels.

    Args:
        root: directory with data_batch_1.bin to data_batch_5.bin and test_batch.bin, or with the files of the Python
            version, which torchvision downloads and whose names have no .bin; or the directory above it.
        limit: use only the first `limit` training samples.
        augment: train on a `bow.data.ShiftedAndMirrored` of the images; False: on tensors.

    Raises:
        DataError: a file is missing or damaged.
        SettingError: the limit is below 1.

    References:
        Krizhevsky: Learning multiple layers of features from tiny images, 2009.
    """
    if root is None:
        raise DataError(f"CIFAR-10 needs a directory, got root=None; {_REMEDY}")
    above = given_path("root", root)
    directory = next((above / name for name in _FOLDERS if _is_there(above / name)), above)
    is_pickled = _is_there(directory / "data_batch_1")
    read, ending = (_read_pickle, "") if is_pickled else (_read_records, ".bin")
    parts = [read(directory / f"data_batch_{number}{ending}") for number in range(1, 6)]
    train_images, train_labels = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    images, labels = read(directory / f"test_batch{ending}")
    train_images, images = standardize(train_images, images)
    splits = DataSplits((train_images, train_labels), (images, labels), _CLASSES, "cifar10").limited(limit)
    return replace(splits, train=ShiftedAndMirrored(*splits.train)) if augment else splits


def _read_records(path: Path) -> tuple[Tensor, Tensor]:
    content = _read_part_of_cifar(path)  # records of a label byte, then 1,024 bytes each of red, green and blue
    if not content or len(content) % _RECORD_BYTES:
        raise DataError(
            f"{path} has {len(content)} bytes, which is not a multiple of the {_RECORD_BYTES} of a record; "
            "get the file again"
        )
    records = torch.frombuffer(content, dtype=torch.uint8).view(-1, _RECORD_BYTES)
    return _checked(path, records[:, 1:], records[:, 0].long())


def _read_pickle(path: Path) -> tuple[Tensor, Tensor]:
    """Read images and labels of a pickled dictionary: rows of 3,072 bytes under `data`, and `labels`."""
    content = _read_part_of_cifar(path)
    try:
        part = _Arrays(io.BytesIO(content), encoding="bytes").load()
        data, labels = torch.as_tensor(part[b"data"]), torch.as_tensor(part[b"labels"])
    except Exception as error:  # any error that unpickling raises
        raise DataError(f"{path} is damaged ({reason(error)}); get the file again") from error
    if data.dtype != torch.uint8 or data.shape != (len(labels), _RECORD_BYTES - 1) or not len(labels):
        raise DataError(f"{path} holds no pictures of {_RECORD_BYTES - 1} bytes with a label each; get the file again")
    return _checked(path, data, labels.long())


class _Arrays(pickle.Unpickler):
    """Unpickles arrays only: a pickle could call any function."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] != "numpy" or name not in ("_reconstruct", "ndarray", "dtype"):
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed")
        return super().find_class(module, name)


def _read_part_of_cifar(path: Path) -> bytearray:
    if not _is_there(path):
        raise DataError(f"{path} is missing; {_REMEDY}")
    return _read(path)


def _checked(path: Path, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if labels.min() < 0 or labels.max() >= _CLASSES:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"{path} holds the label {wrong} of {_CLASSES} classes; get the file again")
    return pixels.reshape(-1, *_SHAPE), labels


class ShiftedAndMirrored(TensorDataset):
    """Images with random shifts and horizontal flips, drawn again at every read.

    An image is padded with zeros (the mean of standardized images), and a crop of the original size is taken. Random
    numbers depend only on the seed and the position in the training, so a resumed training draws the same ones.

    Args:
        images: `[samples, channels, height, width]`.
        labels: `[samples, ...]`.
        padding: maximum shift in pixels.

    Example:
        >>> data = ShiftedAndMirrored(torch.ones(8, 3, 32, 32), torch.zeros(8))
        >>> data[0][0].shape
        torch.Size([3, 32, 32])

    References:
        He, Zhang, Ren, Sun: Deep residual learning for image recognition, 2016, section 4.2.
    """

    def __init__(self, images: Tensor, labels: Tensor, padding: int = 4) -> None:
        super().__init__(images, labels)
        self.padding = padding

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        images, labels = (tensor[indices] for tensor in self.tensors)
        count, channels, height, width = images.shape
        shift = torch.randint(2 * self.padding + 1, (2, count, 1))
        rows, columns = shift[0] + torch.arange(height), shift[1] + torch.arange(width)
        columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
        padded = torch.nn.functional.pad(images, [self.padding] * 4)
        each, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
        return list(zip(padded[each, channel, rows[:, None, :, None], columns[:, None, None, :]], labels, strict=True))
