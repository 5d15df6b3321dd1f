import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bow.data import DataSplits, fashion_mnist, mnist
from bow.data.mnist_family import FASHION_MNIST_ROOT
from bow.errors import DataError

loaders = pytest.mark.parametrize("load", [mnist, fashion_mnist])


def _write_part(root: Path, part: str, labels: list[int], num_images: int | None = None, size: int = 28) -> None:
    count = len(labels) if num_images is None else num_images
    pixels = bytes(index % 251 for index in range(count * size * size))
    images = b"\0\0\x08\x03" + struct.pack(">3I", count, size, size) + pixels
    (root / f"{part}-images-idx3-ubyte").write_bytes(images)
    content = b"\0\0\x08\x01" + struct.pack(">I", len(labels)) + bytes(labels)
    (root / f"{part}-labels-idx1-ubyte").write_bytes(content)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    _write_part(tmp_path, "train", [0, 9, 4])
    _write_part(tmp_path, "t10k", [7, 1])
    return tmp_path


@loaders
def test_files_become_normalised_images_and_labels(load: Callable[..., DataSplits], root: Path) -> None:
    splits = load(root)
    images, labels = splits.train
    assert images.shape == (3, 1, 28, 28)
    assert images.dtype == torch.float32
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert labels.tolist() == [0, 9, 4]
    assert splits.validation[0].shape == (2, 1, 28, 28)
    assert splits.validation[1].tolist() == [7, 1]
    assert splits.classes == 10
    assert splits.name == load.__name__


@loaders
def test_limit_is_passed_on(load: Callable[..., DataSplits], root: Path) -> None:
    assert load(str(root), limit=2).train[1].tolist() == [0, 9]


@loaders
def test_missing_files_are_named_with_the_remedy(load: Callable[..., DataSplits], root: Path) -> None:
    (root / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte is missing, .*; .* set root to"):
        load(root)


def test_mnist_without_root_says_how_to_get_it() -> None:
    with pytest.raises(DataError, match="root=None; download the four IDX files"):
        mnist()


def test_numbers_of_images_and_labels_must_agree(root: Path) -> None:
    _write_part(root, "train", [1, 2, 3], num_images=2)
    with pytest.raises(DataError, match="holds 2 images and train-labels-idx1-ubyte 3 labels"):
        mnist(root)


def test_labels_beyond_the_classes_are_refused(root: Path) -> None:
    _write_part(root, "t10k", [1, 10])
    with pytest.raises(DataError, match="holds the label 10 of 10 classes"):
        mnist(root)


def test_images_of_another_size_are_refused(root: Path) -> None:
    _write_part(root, "t10k", [1, 2], size=8)
    with pytest.raises(DataError, match="8x8 pixels instead of 28x28"):
        mnist(root)


@pytest.mark.skipif(
    not FASHION_MNIST_ROOT.is_dir(), reason="needs Fashion-MNIST: Debian's package dataset-fashion-mnist"
)
def test_the_real_fashion_mnist_loads() -> None:
    splits = fashion_mnist()
    assert splits.train[0].shape == (60_000, 1, 28, 28)
    assert splits.validation[0].shape == (10_000, 1, 28, 28)
    assert splits.train[1].bincount().tolist() == [6_000] * 10
    assert splits.validation[1].bincount().tolist() == [1_000] * 10
