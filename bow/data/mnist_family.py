"""MNIST and Fashion-MNIST, from IDX files."""

from pathlib import Path

from torch import Tensor

from bow.data.idx import read_idx
from bow.data.splits import DataSplits, standardize
from bow.errors import DataError
from bow.values import given_path

FASHION_MNIST_ROOT = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""

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
    return _load("fashion_mnist", FASHION_MNIST_ROOT if root is None else given_path("root", root), remedy).limited(
        limit
    )


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
        if path.is_file():
            return path
    raise DataError(f"{root / name} is missing, plain and with .gz; {remedy}")
